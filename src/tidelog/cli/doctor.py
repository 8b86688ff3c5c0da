"""`tidelog doctor`: looks at a cluster and says in words what is wrong with it and what to do next.

Exit code 0: no problem (there may be warnings); 1: a problem was found; 2: no broker can be talked to.
"""

import sys
from dataclasses import asdict

import click

from tidelog.admin.diagnosis import Finding, Severity, counted, worst
from tidelog.admin.diagnosis_checks import diagnose
from tidelog.admin.examination import NotReachable, examine
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json

#: consumers commit every five seconds (auto.commit.interval.ms) unless told otherwise
WATCH_SECONDS = 6.0
CONNECT_SECONDS_MAX = 5.0
COLOURS = {
    Severity.OK: "green",
    Severity.HINT: "blue",
    Severity.WARNING: "yellow",
    Severity.PROBLEM: "red",
}


class Unreachable(CommandError):
    """Nobody is there to be examined."""

    exit_code = 2


@click.command()
@click.option(
    "--watch",
    "watch_seconds",
    type=click.FloatRange(min=0),
    default=WATCH_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch groups that are behind or rebalance, before they are called stuck; 0 for not.",
)
@click.option("--quiet", "-q", is_flag=True, help="Leave out what is well.")
@json_option
@connection_options()
def doctor(connection: Connection, watch_seconds: float, quiet: bool, as_json: bool) -> None:
    """Check a cluster and say in words what is wrong, how bad it is, and what to do next.

    It looks at addresses, brokers, controller, partitions, leaders, replication, settings, groups,
    transactions, disks, clocks, versions and certificates. It changes nothing, and works with any Kafka
    cluster. Exit code 1 means that a problem was found, 2 that no broker could be talked to.

    \b
    Examples:
      tidelog doctor
      tidelog doctor --quiet --watch 0
      tidelog doctor --json | jq '.findings[] | select(.severity == "problem")'
    """
    settings = connection.client_settings(CONNECT_SECONDS_MAX)
    try:
        seen = examine(connection.bootstrap, settings, watch_seconds, _progress)
    except NotReachable as fault:
        raise Unreachable(fault.message, fault.hint) from fault
    _progress("")
    findings = diagnose(seen)
    shown = [finding for finding in findings if finding.severity > Severity.OK or not quiet]
    if as_json:
        print_json(
            {
                "bootstrap": seen.bootstrap,
                "cluster_id": seen.cluster_id,
                "worst": worst(findings).word,
                "findings": [{**asdict(finding), "severity": finding.severity.word} for finding in shown],
            }
        )
    else:
        _print(findings, shown)
    if worst(findings) is Severity.PROBLEM:
        raise click.exceptions.Exit(1)


def _print(findings: list[Finding], shown: list[Finding]) -> None:
    # The worst last: that is what stays in sight on a terminal.
    for finding in sorted(shown, key=lambda finding: finding.severity):
        word = click.style(finding.severity.word.ljust(7), fg=COLOURS[finding.severity])
        click.echo(f"{word}  {finding.check}: {finding.message}")
        if finding.next_step:
            click.echo(f"         next: {finding.next_step}")
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    click.echo(
        ", ".join(
            (
                counted(counts[Severity.PROBLEM], "problem"),
                counted(counts[Severity.WARNING], "warning"),
                counted(counts[Severity.HINT], "hint"),
            )
        )
        + f"; {counted(counts[Severity.OK], 'check')} found nothing wrong"
    )


def _progress(text: str) -> None:
    """One line that is overwritten, for a person who waits."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

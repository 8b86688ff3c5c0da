"""`tidelog cluster roll`: ask the supervisor of a local cluster for a rolling restart, and watch it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json
from tidelog.cli.up import DEFAULT_DATA
from tidelog.server.supervisor import read_state

POLL_SECONDS = 0.1


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(DEFAULT_DATA),
    show_default=True,
    metavar="DIR",
    help="The data folder of the cluster.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch; the supervisor goes on by itself.",
)
@json_option
def roll(data: Path, timeout_seconds: float, as_json: bool) -> None:
    """Restart the brokers of 'tidelog up --brokers' one by one, without clients noticing.

    Brokers that are down are started first. Then each in turn, the controller last, hands over what it
    leads, is restarted, and every replica is in sync again before the next one follows.

    On several machines do the same by hand: stop one broker with SIGTERM, start it, wait with
    'tidelog cluster status --wait 300', go on with the next; leave the controller for last.

    \b
    Examples:
      tidelog cluster roll
      tidelog cluster roll --data /var/lib/tidelog
    """
    state = running_state(data)
    if not state["ready"] or state["doing"] is not None:
        raise CommandError(f"the supervisor is busy ({state['doing'] or 'start'})", "wait until it is done")
    number = 1 if state["roll"] is None else int(state["roll"]["number"]) + 1
    os.kill(int(state["pid"]), signal.SIGUSR1)
    result = watch(data, number, timeout_seconds, quiet=as_json)
    if as_json:
        print_json({"state": result["state"], "done": result["done"], "reason": result["reason"]})
    if result["state"] != "done":
        raise CommandError(
            f"the rolling restart was given up: {result['reason']}",
            "see 'tidelog cluster status' and the logs",
        )
    if not as_json:
        click.echo("Every broker was restarted and every replica is in sync.")


def running_state(data: Path) -> dict[str, Any]:
    """What the supervisor says; an error if none runs."""
    state = read_state(data)
    if state is None:
        raise CommandError(
            f"no cluster runs in {data}", "give the --data that 'tidelog up --brokers' was started with"
        )
    return state


def watch(data: Path, number: int, timeout_seconds: float, *, quiet: bool) -> dict[str, Any]:
    """Follow the rolling restart with this number to its end."""
    deadline = time.monotonic() + timeout_seconds
    told = 0
    while time.monotonic() < deadline:
        state = running_state(data)
        result: dict[str, Any] | None = state["roll"]
        # The result of an earlier one may still be there.
        if result is not None and result["number"] == number:
            for broker_id in result["done"][told:]:
                told += 1
                if not quiet:
                    click.echo(f"broker {broker_id} restarted ({told} of {len(state['brokers'])})")
            if result["state"] != "running" and state["doing"] is None:
                return result
        time.sleep(POLL_SECONDS)
    raise CommandError(f"not done after {timeout_seconds:g} s", "the supervisor goes on; look again later")

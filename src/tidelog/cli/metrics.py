"""`tidelog metrics`: what watches a cluster, ready to use."""

import re
from importlib import resources
from pathlib import Path

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.lazy_group import CommandEntry, LazyGroup

ASSETS = ("prometheus.yml", "tidelog-alerts.yml", "grafana-dashboard.json")
_TARGETS = re.compile(r"(?<=      - targets:\n)(?:          - .*\n)+")


@click.command(
    cls=LazyGroup,
    entries={
        "export": CommandEntry(
            "tidelog.cli.metrics:export", "Write a Prometheus config, alerts and a Grafana dashboard."
        )
    },
)
def metrics() -> None:
    """What watches a cluster: configuration for Prometheus and Grafana."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="HOST:PORT",
    help="Where a broker serves its metrics; repeat for more (default: 127.0.0.1:9644 to 9646).",
)
@click.option("--force", is_flag=True, help="Write over files that are there.")
def export(folder: Path, targets: tuple[str, ...], force: bool) -> None:
    """Write prometheus.yml, tidelog-alerts.yml and grafana-dashboard.json into a folder.

    \b
    Examples:
      tidelog metrics export monitoring
      tidelog metrics export monitoring --target broker-1:9644 --target broker-2:9644
    """
    for target in targets:
        if not re.fullmatch(r"[\w.\-\[\]:]+:\d+", target):
            raise click.BadParameter(f"{target!r} is not of the form host:port", param_hint="'--target'")
    folder.mkdir(parents=True, exist_ok=True)
    present = [name for name in ASSETS if (folder / name).exists()]
    if present and not force:
        raise CommandError(
            f"{folder} has {', '.join(present)} already", "another folder, or --force to write over them"
        )
    for name in ASSETS:
        text = resources.files("tidelog.server").joinpath("metrics_assets", name).read_text(encoding="utf-8")
        if targets and name == "prometheus.yml":
            text = _TARGETS.sub("".join(f'          - "{target}"\n' for target in targets), text)
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(f"Wrote {folder / name}")
    click.echo(f"  prometheus --config.file={folder / 'prometheus.yml'}")
    click.echo("  in Grafana: Dashboards, New, Import, and the file of the dashboard")

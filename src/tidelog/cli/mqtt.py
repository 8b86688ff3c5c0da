"""`tidelog mqtt`: what a gateway's rules say, without a gateway or a cluster."""

from pathlib import Path

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.gateway_mqtt import MAP_OPTION, TOPIC_OPTION, read_topic_map
from tidelog.cli.output import json_option, print_json, print_table


@click.group()
def mqtt() -> None:
    """Look at what an MQTT gateway does with topics."""


@mqtt.command("map")
@click.argument("names", nargs=-1, metavar="[TOPIC]…")
@MAP_OPTION
@TOPIC_OPTION
@json_option
def show_map(names: tuple[str, ...], map_file: Path | None, topic: str, as_json: bool) -> None:
    """Show to which Kafka topics MQTT topics and filters belong, and with which keys.

    Without a TOPIC the rules are listed, in their order: the first that fits counts.

    \b
    Examples:
      tidelog mqtt map --map rules.toml
      tidelog mqtt map --map rules.toml sensors/7/temperature 'sensors/#'
    """
    from tidelog.gateways.mqtt import filters

    topic_map = read_topic_map(map_file, topic)
    rows: list[dict[str, str | None]] = []
    if not names:
        rows = [{"filter": rule.filter, "topic": rule.topic, "key": rule.key} for rule in topic_map.rules]
    for name in names:
        fault = filters.filter_fault(name)
        if fault is not None:
            raise CommandError(f"{name!r}: {fault}", "an MQTT topic like a/b, or a filter like a/+ or a/#")
        found: list[tuple[str, str | None]] = []
        if filters.topic_fault(name) is None:
            rule = topic_map.find(name)
            if rule is not None:
                found = [(rule.topic, rule.key_of(name))]
        else:
            found = [(each, None) for each in topic_map.topics_for(name)]
        rows += [{"filter": name, "topic": each, "key": key} for each, key in found] or [
            {"filter": name, "topic": None, "key": None}
        ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["mqtt", "kafka topic", "key"],
        [[row["filter"], row["topic"] or "(none: refused)", row["key"]] for row in rows],
    )

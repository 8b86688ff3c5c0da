"""Positions, settings, plans, tables, latencies: the values behind the commands."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

from tidelog.admin.offset_reset import (
    LogEnds,
    Target,
    TargetKind,
    parse_offsets_csv,
    partitions_of,
    plan_reset,
)
from tidelog.admin.sizes import bytes_text
from tidelog.admin.topic_description import id_text
from tidelog.cli.errors import CommandError
from tidelog.cli.latency import LatencyHistogram
from tidelog.cli.output import print_table, utc_text
from tidelog.cli.positions import PositionKind, RequestedPosition, parse_position
from tidelog.cli.properties import parse_assignments, read_properties
from tidelog.cli.up import environment_settings, layered_settings
from tidelog.controller.machine import uuid_text

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", RequestedPosition(PositionKind.BEGINNING)),
        ("Earliest", RequestedPosition(PositionKind.BEGINNING)),
        ("end", RequestedPosition(PositionKind.END)),
        ("42", RequestedPosition(PositionKind.OFFSET, 42)),
        ("-5", RequestedPosition(PositionKind.BEFORE_END, 5)),
        ("@1700000000000", RequestedPosition(PositionKind.TIMESTAMP, 1_700_000_000_000)),
        ("1970-01-01T00:00:01Z", RequestedPosition(PositionKind.TIMESTAMP, 1000)),
        ("1970-01-01T01:00:00.500+01:00", RequestedPosition(PositionKind.TIMESTAMP, 500)),
        ("15m", RequestedPosition(PositionKind.TIMESTAMP, NOW_MS - 900_000)),
        ("2d", RequestedPosition(PositionKind.TIMESTAMP, NOW_MS - 2 * 86_400_000)),
    ],
)
def test_positions(text: str, expected: RequestedPosition) -> None:
    assert parse_position(text, lambda: NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "--5", "@", "15w", "2026-99-99"])
def test_positions_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position"):
        parse_position(text)


def test_assignments() -> None:
    assert parse_assignments(("a=1", "b = x=y "), "'-X'") == {"a": "1", "b": "x=y"}
    for bad in ("a", "=1"):
        with pytest.raises(click.BadParameter, match="name=value"):
            parse_assignments((bad,), "'-X'")


def test_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# comment\n! too\n\nnum.partitions=3\nlog.dirs : /a,\\\n  /b\nlisteners=PLAINTEXT://:9092\n"
    )
    assert read_properties(path) == {
        "num.partitions": "3",
        "log.dirs": "/a,/b",
        "listeners": "PLAINTEXT://:9092",
    }
    path.write_text("num.partitions\n")
    with pytest.raises(CommandError, match=r"server\.properties:1"):
        read_properties(path)
    with pytest.raises(CommandError, match="cannot read"):
        read_properties(tmp_path / "absent")


def test_settings_layers() -> None:
    environment = {"TIDELOG_SET_NUM_PARTITIONS": "2", "TIDELOG_BOOTSTRAP": "x:1", "TIDELOG_SET_": "no"}
    assert environment_settings(environment) == {"num.partitions": "2"}
    layered = layered_settings(
        {"num.partitions": "1", "listeners": "PLAINTEXT://a:1", "node.id": "5"},
        environment,
        {"node.id": "6"},
        host=None,
        port=None,
        advertise=None,
    )
    assert layered == {"num.partitions": "2", "listeners": "PLAINTEXT://a:1", "node.id": "6"}


@pytest.mark.parametrize(
    ("host", "port", "flags", "listeners"),
    [
        (None, None, {}, "PLAINTEXT://127.0.0.1:9092"),
        ("::1", 0, {}, "PLAINTEXT://[::1]:0"),
        (None, 7, {"listeners": "PLAINTEXT://h:8"}, "PLAINTEXT://h:8"),
    ],
)
def test_listener_flags(host: str | None, port: int | None, flags: dict[str, str], listeners: str) -> None:
    settings = layered_settings({}, {}, flags, host=host, port=port, advertise="me:1")
    assert settings["listeners"] == listeners
    assert settings["advertised.listeners"] == "PLAINTEXT://me:1"


@pytest.mark.parametrize(
    "configured",
    [
        {"listeners": "SASL_SSL://0.0.0.0:9093"},
        {"listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://0.0.0.0:9093"},
        {"listeners": "INSIDE://127.0.0.1:9092", "listener.security.protocol.map": "INSIDE:SSL"},
        {"listeners": "PLAINTEXT://127.0.0.1:9092", "listener.security.protocol.map": "PLAINTEXT:SASL_SSL"},
    ],
)
@pytest.mark.parametrize("flags", [{"port": 9095}, {"host": "0.0.0.0"}, {"advertise": "me:1"}])
def test_flags_never_replace_listeners_that_are_not_like_theirs(
    configured: dict[str, str], flags: dict[str, Any]
) -> None:
    """--port beside a file with SASL_SSL would open the broker to everybody."""
    chosen: dict[str, Any] = {"host": None, "port": None, "advertise": None, **flags}
    with pytest.raises(CommandError, match="would replace the listeners") as refused:
        layered_settings(configured, {}, {}, **chosen)
    assert "--set listeners=" in (refused.value.hint or "")


def test_flags_replace_a_listener_like_theirs() -> None:
    configured = {"listeners": "PLAINTEXT://127.0.0.1:9092"}
    settings = layered_settings(configured, {}, {}, host=None, port=9095, advertise=None)
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:9095"


ENDS = {("t", 0): LogEnds(10, 100, 50), ("t", 1): LogEnds(0, 5, None)}
COMMITTED = {("t", 0): 40}


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (Target(TargetKind.EARLIEST), [10, 0]),
        (Target(TargetKind.LATEST), [100, 5]),
        (Target(TargetKind.TIMESTAMP, 1), [50, 5]),
        (Target(TargetKind.OFFSET, 7), [10, 5]),
        (Target(TargetKind.SHIFT, -35), [10]),
        (Target(TargetKind.SHIFT, 3), [43]),
        (Target(TargetKind.CURRENT), [40]),
        (Target(TargetKind.FILE, offsets={("t", 1): 4}), [4]),
    ],
)
def test_reset_plan(target: Target, new: list[int]) -> None:
    plan = plan_reset("g", target, COMMITTED, ENDS)
    assert [move.new for move in plan.moves] == new


def test_reset_plan_says_what_it_bent_and_what_changes() -> None:
    moves = plan_reset("g", Target(TargetKind.OFFSET, 40), COMMITTED, ENDS).moves
    assert [(move.changes, bool(move.note)) for move in moves] == [(False, False), (True, True)]


def test_reset_plan_through_a_file() -> None:
    plan = plan_reset("g", Target(TargetKind.LATEST), COMMITTED, ENDS)
    assert parse_offsets_csv(plan.as_csv()) == {("t", 0): 100, ("t", 1): 5}
    for bad in ("t,0\n", "t,x,1\n", "t,0,-1\n", ""):
        with pytest.raises(ValueError, match="topic,partition,offset"):
            parse_offsets_csv(bad)


def test_partitions_by_word() -> None:
    assert partitions_of(["a", "b:1"], {"a": 2, "b": 3}) == [("a", 0), ("a", 1), ("b", 1)]
    for word in ("c", "a:2", "a:x"):
        with pytest.raises(ValueError, match=r"there is no topic|has no partition"):
            partitions_of([word], {"a": 2})


def test_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "count"), [("orders", 5), ("[b]x[/b]", None), ("y", 100)])
    assert capsys.readouterr().out == "TOPIC     COUNT\norders        5\n[b]x[/b]      -\ny           100\n"


def test_table_on_a_terminal_keeps_markup_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(("topic",), [("[b]x[/b]",)])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "[b]x[/b]" in out and "topic" in out


def test_sizes_and_times() -> None:
    assert [bytes_text(size) for size in (0, 1023, 1536, 200 << 10, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "200 KiB",
        "5.0 TiB",
    ]
    assert utc_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert utc_text(-1) is None
    assert utc_text(2**62) == f"{2**62} ms"


def test_latency_percentiles() -> None:
    histogram = LatencyHistogram()
    assert histogram.summary()["p50_ms"] is None
    for millisecond in range(1, 1001):
        histogram.add(millisecond / 1000)
    for percent, expected in ((50, 500), (99, 990), (99.9, 999)):
        assert histogram.percentile_ms(percent) == pytest.approx(expected, rel=0.011)
    assert histogram.summary()["max_ms"] == pytest.approx(1000)
    assert json.dumps(histogram.summary())


def test_ids_of_topics_are_written_as_kafka_does() -> None:
    for value in (UUID(int=0), UUID(int=2**128 - 1), UUID("fbefbe00-ffff-4fff-bfff-fbefbefbefbe")):
        assert id_text(value) == uuid_text(value)

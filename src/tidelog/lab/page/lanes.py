"""A picture of the lab as lanes: for every partition a strip of offsets, a row for each replica and reader.

A strip shows the newest offsets, and one slot for the record that comes next: `SLOTS` in all. The rows of a
lane share its slots, so what stands below each other is the same offset. Positions are borders between slots:
a high watermark at slot 7 has seven slots to its left that everyone may read.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

SLOTS = 24
LANES_MAX = 24
#: colours of keys in the style sheet
HUES = 6
#: larger offsets are written at every fifth slot alone
NARROW_OFFSET_MAX = 999

Place = tuple[str, int, int]


class Known(NamedTuple):
    """A record that was seen on its way; equal keys have equal hues, from 1, and no key has 0."""

    key: str | None
    value: str | None
    hue: int


Records = Mapping[Place, Known]


class Cell(NamedTuple):
    """An offset in a log: `committed`, `uncommitted` (beyond the high watermark), `open` (its transaction is
    not decided), `deleted`, `missing` (others have it), `next`, or `ahead`. Equal keys have equal hues."""

    offset: int
    state: str
    hue: int
    title: str


class ReplicaRow(NamedTuple):
    """One copy of a partition."""

    broker: int
    leads: bool
    in_sync: bool
    #: of its broker
    state: str
    log_end: int
    cells: list[Cell]

    @property
    def role(self) -> str:
        if self.state != "running":
            return "dead" if self.state == "down" else self.state
        return "leader" if self.leads else "follower"


class ReaderRow(NamedTuple):
    """How far a consumer is in a partition that it has."""

    name: str
    group: str
    state: str
    position: int | None
    committed: int | None
    lag: int | None
    position_slot: int | None
    committed_slot: int | None
    #: it reads before what the strip shows
    before: bool


class Lane(NamedTuple):
    """A partition; slots are None for what is not known."""

    topic: str
    partition: int
    leader: int
    isr: list[int]
    log_start: int | None
    high_watermark: int | None
    last_stable: int | None
    high_watermark_slot: int | None
    last_stable_slot: int | None
    #: whether half of the slots show all of it, for narrow screens
    short: bool
    ruler: list[str]
    replicas: list[ReplicaRow]
    readers: list[ReaderRow]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def lanes(picture: Mapping[str, Any], records: Records) -> list[Lane]:
    """Every partition of a picture, in its order, at most `LANES_MAX`."""
    found = [(topic["name"], row) for topic in picture["topics"] for row in topic["partitions"]]
    return [_lane(topic, row, picture, records) for topic, row in found[:LANES_MAX]]


def _lane(topic: str, row: Mapping[str, Any], picture: Mapping[str, Any], records: Records) -> Lane:
    states = {broker["id"]: broker["state"] for broker in picture["brokers"]}
    replicas = row["replicas"]
    end = max((replica["log_end"] for replica in replicas), default=0)
    first = max(0, end + 1 - SLOTS)
    return Lane(
        topic=topic,
        partition=row["partition"],
        leader=row["leader"],
        isr=sorted(row["isr"]),
        log_start=row["log_start"],
        high_watermark=row["high_watermark"],
        last_stable=row["last_stable"],
        high_watermark_slot=_slot(row["high_watermark"], first),
        last_stable_slot=_slot(row["last_stable"], first),
        short=end < SLOTS // 2,
        ruler=[_ruler_text(offset, end) for offset in range(first, first + SLOTS)],
        replicas=[
            ReplicaRow(
                broker=replica["broker"],
                leads=replica["leads"],
                in_sync=replica["in_sync"],
                state=states.get(replica["broker"], "down"),
                log_end=replica["log_end"],
                cells=[
                    _cell(topic, row, replica["log_end"], end, offset, records)
                    for offset in range(first, first + SLOTS)
                ],
            )
            for replica in replicas
        ],
        readers=[
            reader
            for consumer in picture["consumers"]
            if (reader := _reader(topic, row, consumer, first)) is not None
        ],
    )


def _ruler_text(offset: int, end: int) -> str:
    if offset > end or (end > NARROW_OFFSET_MAX and offset % 5):
        return ""
    return str(offset)


def _slot(offset: int | None, first: int) -> int | None:
    return None if offset is None else min(SLOTS, max(0, offset - first))


def _cell(topic: str, row: Mapping[str, Any], log_end: int, end: int, offset: int, records: Records) -> Cell:
    state = _state(row, log_end, end, offset)
    if state in ("next", "ahead", "missing", "deleted"):
        return Cell(offset, state, 0, "")
    title = f"offset {offset}"
    hue = 0
    if (known := records.get((topic, row["partition"], offset))) is not None:
        key, value, hue = known
        title += f" · key {'none' if key is None else key} · {'null' if value is None else value[:60]}"
    return Cell(offset, state, hue, f"{title} · {state}")


def _state(row: Mapping[str, Any], log_end: int, end: int, offset: int) -> str:
    if offset > end:
        return "ahead"
    if offset == end:
        return "next"
    if row["log_start"] is not None and offset < row["log_start"]:
        return "deleted"
    if offset >= log_end:
        return "missing"
    if row["high_watermark"] is not None and offset >= row["high_watermark"]:
        return "uncommitted"
    if row["last_stable"] is not None and offset >= row["last_stable"]:
        return "open"
    return "committed"


def _reader(topic: str, row: Mapping[str, Any], consumer: Mapping[str, Any], first: int) -> ReaderRow | None:
    place = [topic, row["partition"]]
    if place not in consumer["assignment"]:
        return None
    position = next((item[2] for item in consumer["positions"] if item[:2] == place), None)
    committed = next((item[2] for item in consumer["committed"] if item[:2] == place), None)
    lag = None
    if row["high_watermark"] is not None and committed is not None:
        lag = max(0, row["high_watermark"] - committed)
    return ReaderRow(
        consumer["name"],
        consumer["group"],
        consumer["state"],
        position,
        committed,
        lag,
        _slot(position, first),
        _slot(committed, first),
        position is not None and position < first,
    )

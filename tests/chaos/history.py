"""What clients did and saw, written down as it happens: the input of the checkers in history_checks.py.

Every actor (a producer, a consumer, a transactional worker, a probe) has a `Recorder` of its own, a file of
JSON lines, one event per line in the order in which the actor lived it. Times are `time.monotonic()`, which
all processes of a machine share. `load` reads a folder of such files as one `History`.

A value is a text that no two sends share, so that a record tells which send it came from.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""

ACKNOWLEDGED, FAILED, UNKNOWN = "acknowledged", "failed", "unknown"
"""Outcomes of a send. Failed: for certain not in the log. Unknown: it may be there."""
COMMITTED, ABORTED = "committed", "aborted"
"""Outcomes of a transaction, beside UNKNOWN."""
NO_OFFSET = -1


class Send(NamedTuple):
    """One record that was handed to a producer, and what became of it."""

    producer: str
    number: int
    """The producer's own count: it was told to send in this order."""
    topic: str
    partition: int
    value: str
    outcome: str
    offset: int
    begun: float
    ended: float
    acks: str = "all"
    idempotent: bool = True
    transaction: str = ""
    """The tag of the transaction that it belongs to."""
    source: str = ""
    """The value of the record that it was made from."""

    @property
    def place(self) -> Place:
        return (self.topic, self.partition)


class Poll(NamedTuple):
    """Records of one partition that a consumer got at once."""

    consumer: str
    group: str
    topic: str
    partition: int
    records: tuple[tuple[int, str], ...]
    """Offsets and values."""
    at: float
    committed: bool = True
    """Whether it reads committed data only."""
    final: bool = False
    """Whether it belongs to the reading of everything after the faults."""

    @property
    def place(self) -> Place:
        return (self.topic, self.partition)


class Assigned(NamedTuple):
    """A consumer's partitions changed: it may go on anywhere in them."""

    consumer: str
    at: float
    places: tuple[Place, ...]


class Transaction(NamedTuple):
    """How a transaction ended."""

    tag: str
    outcome: str
    begun: float
    commit_begun: float
    """When its producer asked for the commit; infinite if it never did."""
    ended: float


class Copies(NamedTuple):
    """Every record of one topic is to be processed into another, exactly once."""

    source_topic: str
    target_topic: str


class Follows(NamedTuple):
    """A group is to read every record of a topic."""

    group: str
    topic: str


Event: TypeAlias = Send | Poll | Assigned | Transaction | Copies | Follows
KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Send, Poll, Assigned, Transaction, Copies, Follows)
}


@dataclass
class History:
    """Everything that was recorded. `reads` keeps each consumer's own order."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Poll | Assigned] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    copies: list[Copies] = field(default_factory=list)
    follows: list[Follows] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if isinstance(event, Send):
            self.sends.append(event)
        elif isinstance(event, Poll | Assigned):
            self.reads.append(event)
        elif isinstance(event, Transaction):
            self.transactions.append(event)
        elif isinstance(event, Copies):
            self.copies.append(event)
        else:
            self.follows.append(event)

    @property
    def polls(self) -> Iterator[Poll]:
        return (event for event in self.reads if isinstance(event, Poll))


class Recorder:
    """One actor's file. With `immediate`, each event is there when `write` returns, whatever becomes of the
    process."""

    def __init__(self, path: Path, *, immediate: bool = False) -> None:
        self.path = path
        self._file = path.open("a", buffering=1 if immediate else -1, encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        line = json.dumps([type(event).__name__, *event]) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line)

    def close(self) -> None:
        with self._lock:
            self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of one file; a last line that a killed process did not finish is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            kind, *fields = json.loads(line)
            yield _event(kind, fields)


def _event(kind: str, fields: list[object]) -> Event:
    if kind == "Poll":
        fields[4] = tuple((offset, value) for offset, value in fields[4])  # type: ignore[attr-defined]
    elif kind == "Assigned":
        fields[2] = tuple((topic, partition) for topic, partition in fields[2])  # type: ignore[attr-defined]
    return KINDS[kind](*fields)  # type: ignore[arg-type]


def load(folder: Path) -> History:
    """The history of all files of a folder.

    Of several events about one send, or one transaction, the last one counts: an actor that may be killed
    says what it is about to do, then what became of it.
    """
    history = collect(event for path in sorted(folder.glob("*.jsonl")) for event in read_events(path))
    history.sends = list({(send.producer, send.value): send for send in history.sends}.values())
    history.transactions = list({each.tag: each for each in history.transactions}.values())
    return history


def collect(events: Iterable[Event]) -> History:
    history = History()
    for event in events:
        history.add(event)
    return history

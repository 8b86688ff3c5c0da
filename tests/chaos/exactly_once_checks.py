"""What must hold after the exactly-once run, decided on a history of plain values, and ways to spoil one.

A `History` is what was seen: the output topic under read_committed (at the end, and by a reader that watched
all the time) and under read_uncommitted, what the workers said of their transactions, and where the group's
offsets ended. `violations` compares it, by content, with what the input demands. `SPOILERS` are the faults
that it must notice.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

SHOWN_MAX = 5


class Seen(NamedTuple):
    """One output record: where it is, what it says, and the transaction that wrote it.

    The tag is `instance/number/records`: the last is how many records the transaction has.
    """

    offset: int
    value: bytes
    tag: str


View = list[list[Seen]]
"""What one reader saw, by partition."""


@dataclass(frozen=True)
class Said:
    """What the workers said of their transactions, by tag."""

    begun: frozenset[str] = frozenset()
    committed: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    flushed: frozenset[str] = frozenset()
    zombies: frozenset[str] = frozenset()


@dataclass(frozen=True)
class History:
    """Everything that was seen and said in one run."""

    expected: list[list[bytes]]
    committed: View
    uncommitted: View
    watched: View
    said: Said
    group_offsets: list[int] = field(default_factory=list)


def tags(view: View) -> Counter[str]:
    return Counter(record.tag for records in view for record in records)


def violations(history: History) -> list[str]:
    """Every broken promise, in words; empty when all held."""
    found: list[str] = []
    for partition, expected in enumerate(history.expected):
        found += _content(partition, expected, history.committed[partition])
        if history.committed[partition] != history.watched[partition]:
            found.append(
                f"partition {partition}: the reader that watched saw something else than is there now"
            )
        if not set(history.committed[partition]) <= set(history.uncommitted[partition]):
            found.append(f"partition {partition}: read_committed saw what read_uncommitted did not")
    if history.group_offsets != [len(expected) for expected in history.expected]:
        found.append(f"the group's offsets ended at {history.group_offsets}")
    return found + _transactions(history)


def _content(partition: int, expected: list[bytes], seen: list[Seen]) -> list[str]:
    """Once each, nothing else, in order."""
    values = [record.value for record in seen]
    if values == expected:
        return []
    found = []
    counted, wanted = Counter(values), set(expected)
    for name, faulty in (
        ("lost", [value for value in expected if value not in counted]),
        ("repeated", [value for value, count in counted.items() if count > 1]),
        ("invented", [value for value in counted if value not in wanted]),
    ):
        if faulty:
            found.append(f"partition {partition}: {len(faulty)} {name}, {faulty[:SHOWN_MAX]}")
    return found or [f"partition {partition}: the order is not the input's"]


def _transactions(history: History) -> list[str]:
    """All or nothing, as the workers were told."""
    visible, written = tags(history.committed), tags(history.uncommitted)
    said = history.said
    checks = (
        ("partly visible", [tag for tag, count in visible.items() if count != int(tag.rpartition("/")[2])]),
        ("of nobody", [tag for tag in visible if tag not in said.begun]),
        ("said to be committed and not visible", [tag for tag in said.committed if tag not in visible]),
        ("said to be aborted and visible", [tag for tag in said.aborted if tag in visible]),
        ("of zombies and visible", [tag for tag in said.zombies if tag in visible]),
        ("flushed and not in the log at all", [tag for tag in said.flushed if tag not in written]),
        ("of zombies and not in the log at all", [tag for tag in said.zombies if tag not in written]),
    )
    found = [f"{len(faulty)} transactions {name}: {faulty[:SHOWN_MAX]}" for name, faulty in checks if faulty]
    if not said.aborted & set(written):
        found.append("no aborted record is in the log: nothing was shown of aborted transactions")
    return found


# Spoiled histories


def _middle(view: View, change: Callable[[list[Seen], int], list[Seen]]) -> View:
    """The view with its longest partition changed in the middle."""
    longest = max(range(len(view)), key=lambda partition: len(view[partition]))
    changed = change(list(view[longest]), len(view[longest]) // 2)
    return [changed if partition == longest else records for partition, records in enumerate(view)]


def _spoil(history: History, change: Callable[[list[Seen], int], list[Seen]]) -> History:
    """The same fault in both views of committed data, so that only the content can give it away."""
    return replace(
        history, committed=_middle(history.committed, change), watched=_middle(history.watched, change)
    )


def _show_aborted(history: History) -> History:
    """One aborted record becomes visible, in place of nothing."""
    visible = tags(history.committed)
    partition, leaked = next(
        (partition, record)
        for partition, records in enumerate(history.uncommitted)
        for record in records
        if record.tag not in visible
    )
    spoiled = [
        sorted([*records, leaked]) if n == partition else records
        for n, records in enumerate(history.committed)
    ]
    return replace(history, committed=spoiled, watched=spoiled)


def _hide_transaction(history: History) -> History:
    """A whole transaction is gone although its worker was told that it had committed."""
    gone = max(history.said.committed)
    spoiled = [[record for record in records if record.tag != gone] for records in history.committed]
    return replace(history, committed=spoiled, watched=spoiled)


SPOILERS: dict[str, Callable[[History], History]] = {
    "duplicate": lambda h: _spoil(h, lambda records, n: [*records[:n], records[n], *records[n:]]),
    "loss": lambda h: _spoil(h, lambda records, n: records[:n] + records[n + 1 :]),
    "order": lambda h: _spoil(h, lambda r, n: [*r[: n - 1], r[n], r[n - 1], *r[n + 1 :]]),
    "change": lambda h: _spoil(h, lambda r, n: [*r[:n], r[n]._replace(value=b"0"), *r[n + 1 :]]),
    "aborted": _show_aborted,
    "transaction": _hide_transaction,
    "glimpse": lambda h: replace(
        h, watched=_middle(h.watched, lambda records, n: [*records[:n], records[n], *records[n:]])
    ),
    "offsets": lambda h: replace(h, group_offsets=[h.group_offsets[0] - 1, *h.group_offsets[1:]]),
}
"""Faults that `violations` must notice, by name."""

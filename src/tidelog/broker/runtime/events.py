"""The stream of a broker's domain events: each is logged, counted by kind, and kept for a while.

Anybody may listen; the newest `KEPT_MAX` can be read back by number. A change of the metadata that moves
thousands of partitions is told in full by the counts, and by its first `PER_CAUSE_MAX` events.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping

from tidelog.model.events import LEADER_ELECTED_UNCLEANLY, LEADER_LOST, SESSION_LOST, DomainEvent
from tidelog.model.ports import Clock

log = logging.getLogger("tidelog.events")

KEPT_MAX = 1_000
#: events of one kind and cause that are logged and kept; further ones are only counted
PER_CAUSE_MAX = 50
#: kinds that are remembered; what machines call their events is fixed, so this is never reached
KINDS_MAX = 100
#: as much of a name, or of a cause, as is kept and logged
TEXT_LENGTH_MAX = 512
WARNINGS = frozenset({LEADER_ELECTED_UNCLEANLY, LEADER_LOST, SESSION_LOST})

Listener = Callable[[DomainEvent], None]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[:TEXT_LENGTH_MAX]}…"


def _cut_all(fields: Mapping[str, object]) -> Mapping[str, object]:
    """The fields with the beginnings of long names: groups and members may have 32 KB each."""
    if all(not isinstance(value, str) or len(value) <= TEXT_LENGTH_MAX for value in fields.values()):
        return fields
    return {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}


class Events:
    """The events of one broker, oldest first."""

    def __init__(self, clock: Clock, node_id: int) -> None:
        self._clock = clock
        self._node_id = node_id
        self.counts: Counter[str] = Counter()
        #: how many there have been; the number of the last one
        self.count = 0
        self._kept: deque[DomainEvent] = deque(maxlen=KEPT_MAX)
        self._listeners: list[Listener] = []
        self._cause: tuple[str, str] = ("", "")
        self._of_cause = 0

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every event that is kept, from now on."""
        self._listeners.append(listener)

    def emit(
        self, kind: str, fields: Mapping[str, object], *, cause: str = "", cause_id: str = ""
    ) -> DomainEvent | None:
        """Something happened; None if it is only counted."""
        if kind in self.counts or len(self.counts) < KINDS_MAX:
            self.counts[kind] += 1
        self.count += 1
        self._of_cause = self._of_cause + 1 if self._cause == (kind, cause_id) and cause_id else 1
        self._cause = (kind, cause_id)
        if self._of_cause > PER_CAUSE_MAX:
            if self._of_cause == PER_CAUSE_MAX + 1:
                log.info("further events '%s' of %s are only counted", kind, cause_id)
            return None
        event = DomainEvent(
            self.count, self._clock.now_ms(), self._node_id, kind, _cut(cause), cause_id, _cut_all(fields)
        )
        self._kept.append(event)
        level = logging.WARNING if kind in WARNINGS else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s", event, extra={"event": event.as_json()})
        for listener in self._listeners:
            listener(event)
        return event

    def after(self, number: int, count_max: int = KEPT_MAX) -> list[DomainEvent]:
        """The kept events with a higher number, oldest first; the newest ones where there are too many."""
        found = [event for event in self._kept if event.number > number]
        return found[-count_max:]

    def __repr__(self) -> str:
        return f"<Events {self.count} of {len(self.counts)} kinds>"

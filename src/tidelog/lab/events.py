"""What happens in the lab now, as a numbered stream that threads add to and pages read from.

The newest `KEPT_MAX` events are kept; a reader asks for what came after the number it saw last, or waits for
it. The kinds: scenario-begins, cluster-starts, topic-created, cluster-ready, phase, step-begins, step-ended,
delivered, not-delivered (topic, partition, offset, key, value, error), consumer-started, -assigned, -revoked,
-lost, -record, -committed, -error, -stopped (consumer, group), gateway-started (port), fault (fault, broker
or consumer), broker, controller, leader, isr, scenario-ended, cluster-gone.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

KEPT_MAX = 2_000


@dataclass(frozen=True, slots=True)
class LabEvent:
    """Something that happened; `at` is seconds since 1970, `text` a sentence for the timeline."""

    number: int
    at: float
    kind: str
    text: str
    fields: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"number": self.number, "at": self.at, "kind": self.kind, "text": self.text, **self.fields}


class EventStream:
    """The events of one lab."""

    def __init__(self) -> None:
        self._events: deque[LabEvent] = deque(maxlen=KEPT_MAX)
        self._changed = threading.Condition()
        self._number = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<EventStream {self._number} events>"

    def emit(self, kind: str, text: str, **fields: Any) -> LabEvent:
        """Add an event; from any thread."""
        with self._changed:
            self._number += 1
            event = LabEvent(self._number, time.time(), kind, text, fields)
            self._events.append(event)
            self._changed.notify_all()
        return event

    def after(self, number: int, timeout_seconds: float = 0.0) -> list[LabEvent]:
        """The kept events with a higher number; waits for one if there is none yet."""
        with self._changed:
            if timeout_seconds > 0:
                self._changed.wait_for(lambda: self._closed or self._number > number, timeout_seconds)
            return [event for event in self._events if event.number > number]

    def close(self) -> None:
        """Nothing follows: readers that wait come back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def last_number(self) -> int:
        return self._number

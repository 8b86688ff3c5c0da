"""The events of a session for people: what belongs together is one line, and the records seen are kept.

Sent and read records come by the hundred. Those of one topic or consumer that follow each other soon become
one line with a count, at the place of the first.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from tidelog.lab.events import LabEvent
from tidelog.lab.page.lanes import HUES, Known, Place

LINES_MAX = 150
RECORDS_MAX = 5_000
#: how many lines back, and how many seconds, an event may join an earlier one
JOIN_LINES = 6
JOIN_SECONDS = 3.0
UNTOLD = frozenset({"phase", "scenario-begins"})
#: faults that end one
REPAIRS = frozenset({"start", "resume", "heal", "fast", "resume_consumer"})
#: how a kind of event looks; others are plain
LOOKS = {
    "fault": "bad",
    "not-delivered": "bad",
    "consumer-error": "bad",
    "consumer-lost": "bad",
    "broker": "warn",
    "leader": "warn",
    "isr": "warn",
    "controller": "warn",
    "consumer-revoked": "warn",
    "consumer-assigned": "accent",
    "delivered": "good",
    "step-begins": "step",
    "cluster-ready": "good",
}


@dataclass(slots=True)
class Line:
    """A line of the timeline; `number` is that of its first event."""

    number: int
    at: float
    kind: str
    text: str
    look: str
    group: tuple[str, str] | None = None
    last_at: float = 0.0
    count: int = 1


class Timeline:
    """What was told so far, newest line last; `add` is given every event once, in order."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque(maxlen=LINES_MAX)
        self.records: dict[Place, Known] = {}
        self._hues: dict[str, int] = {}
        self.last_number = 0

    def __repr__(self) -> str:
        return f"<Timeline {len(self.lines)} lines up to event {self.last_number}>"

    def add(self, event: LabEvent) -> None:
        self.last_number = event.number
        self._remember(event)
        if event.kind in UNTOLD:
            return
        group = _group(event)
        if group is not None and (line := self._earlier(group, event.at)) is not None:
            line.count += 1
            line.last_at = event.at
            line.text = _joined_text(event, line.count)
            return
        line = Line(event.number, event.at, event.kind, _text(event), _look(event), group, event.at)
        self.lines.append(line)

    def _remember(self, event: LabEvent) -> None:
        if event.kind not in ("delivered", "consumer-record"):
            return
        fields = event.fields
        place = (fields["topic"], fields["partition"], fields["offset"])
        self.records[place] = Known(fields["key"], fields["value"], self._hue(fields["key"]))
        if len(self.records) > RECORDS_MAX:
            del self.records[next(iter(self.records))]

    def _hue(self, key: str | None) -> int:
        """Colours in turn, so that the first few keys differ."""
        if key is None or (key not in self._hues and len(self._hues) >= RECORDS_MAX):
            return 0
        return self._hues.setdefault(key, 1 + len(self._hues) % HUES)

    def _earlier(self, group: tuple[str, str], at: float) -> Line | None:
        newest = [self.lines[-back] for back in range(1, min(JOIN_LINES, len(self.lines)) + 1)]
        for line in newest:
            if line.look == "step":
                return None  # what follows is of another step
            if line.group == group and at - line.last_at <= JOIN_SECONDS:
                return line
        return None


def _look(event: LabEvent) -> str:
    if event.kind == "step-ended":
        return "good" if event.fields["held"] else "bad"
    if event.kind == "fault" and event.fields["fault"] in REPAIRS:
        return "good"
    return LOOKS.get(event.kind, "")


def _group(event: LabEvent) -> tuple[str, str] | None:
    if event.kind in ("delivered", "not-delivered"):
        return (event.kind, str(event.fields["topic"]))
    if event.kind in ("consumer-record", "consumer-committed"):
        return (event.kind, str(event.fields["consumer"]))
    return None


def _text(event: LabEvent) -> str:
    if event.kind == "step-begins":
        return f"Step {event.fields['step']}: {event.text}"
    if event.kind == "step-ended":
        return f"{event.text}: {'it held' if event.fields['held'] else 'it did not hold'}"
    if "consumer" in event.fields or event.kind == "delivered":
        return event.text  # begins with a name
    return event.text[:1].upper() + event.text[1:]


def _joined_text(event: LabEvent, count: int) -> str:
    fields: dict[str, Any] = event.fields
    place = f"{fields['topic']}-{fields['partition']}"
    if event.kind == "delivered":
        return f"{count} records were stored in {fields['topic']}, the last in {place} at {fields['offset']}"
    if event.kind == "not-delivered":
        return f"{count} records for {fields['topic']} were not acknowledged: {fields['error']}"
    if event.kind == "consumer-record":
        return f"{fields['consumer']} read {count} records, the last of {place} at {fields['offset']}"
    return f"{fields['consumer']} committed {count} times, the last {place} at {fields['offset']}"

"""Domain events: what happened to the cluster, its groups and its logs that a person may want to know.

An event has a kind in a few words, fields, a cause in words, and a cause id: events with the same id follow
from the same thing. `change-<n>` is change number n of the metadata, which is the same on every broker;
`<topic>-<partition>@<offset>` is a place in the log of a coordinator; `session-<incarnation>` is the life of
a broker in the cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTROLLER_ELECTED = "controller elected"
LEADER_ELECTED = "leader elected"
LEADER_ELECTED_UNCLEANLY = "leader elected uncleanly"
LEADER_LOST = "partition without a leader"
ISR_SHRANK = "ISR shrank"
ISR_EXPANDED = "ISR expanded"
COMMITTED_RECORDS_CUT = "committed records cut"
CUT_REFUSED = "cut below the high watermark refused"
DIRECTORY_FAILED = "log directory failed"
BROKER_CAME = "broker came"
BROKER_WENT = "broker went"
SEGMENT_ROLLED = "segment rolled"
LOG_COMPACTED = "log compacted"
COMPACTION_FAILED = "compaction failed"
BACKGROUND_JOB_FAILED = "background job failed"
BACKGROUND_JOB_RECOVERED = "background job recovered"
SESSION_LOST = "session lost"


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """One event; `number` counts those of one life of one broker."""

    number: int
    time_ms: int
    broker_id: int
    kind: str
    cause: str = ""
    cause_id: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        fields = " ".join(f"{name}={_text(value)}" for name, value in self.fields.items())
        why = f" because {self.cause}" if self.cause else ""
        return f"{self.kind}: {fields}{why} ({self.cause_id or f'event-{self.broker_id}-{self.number}'})"

    def as_json(self) -> dict[str, object]:
        """As a plain mapping."""
        return {
            "number": self.number,
            "time_ms": self.time_ms,
            "broker": self.broker_id,
            "kind": self.kind,
            "cause": self.cause,
            "cause_id": self.cause_id,
            "fields": dict(self.fields),
        }


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(str, value)) + "]"
    text = str(value)
    return repr(text) if " " in text or not text else text

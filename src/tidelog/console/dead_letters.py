"""Dead letters, as pipelines and Kafka Connect leave them: what their headers say, and what is sent back.

A dead letter keeps key and value of the record that failed; headers name the topic it came from and why it
failed: `tidelog.dlq.*` are ours, `__connect.errors.*` are Connect's. Sent back, it is the record as it was,
without those headers, and with one more attempt in `tidelog.dlq.attempts`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.console.record_view import RecordView

OWN_PREFIX = "tidelog.dlq."
CONNECT_PREFIX = "__connect.errors."
ATTEMPTS = OWN_PREFIX + "attempts"
_TOPIC = (OWN_PREFIX + "topic", CONNECT_PREFIX + "topic")
_REASON = (OWN_PREFIX + "reason", CONNECT_PREFIX + "exception.message")
_SOURCE = (OWN_PREFIX + "pipeline", CONNECT_PREFIX + "connector.name")
_PARTITION = (OWN_PREFIX + "partition", CONNECT_PREFIX + "partition")
_OFFSET = (OWN_PREFIX + "offset", CONNECT_PREFIX + "offset")

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic; `target` is where it came from."""

    record: RecordView
    target: str
    reason: str
    source: str
    origin: str
    attempts: int

    def headers_again(self) -> Headers:
        """The headers of the record that is sent back."""
        kept: Headers = [
            (name, value)
            for name, value in self.record.headers
            if not name.startswith((OWN_PREFIX, CONNECT_PREFIX))
        ]
        return [*kept, (ATTEMPTS, str(self.attempts + 1).encode())]


def dead_letter(record: RecordView) -> DeadLetter | None:
    """What a record says about its failure; None where it is no dead letter."""
    said = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    target = _first(said, _TOPIC)
    if not target:
        return None
    attempts = said.get(ATTEMPTS, "0")
    return DeadLetter(
        record,
        target,
        _first(said, _REASON),
        _first(said, _SOURCE),
        f"{target}-{_first(said, _PARTITION) or '?'} @ {_first(said, _OFFSET) or '?'}",
        int(attempts) if attempts.isascii() and attempts.isdigit() and len(attempts) < 10 else 0,
    )


def _first(said: dict[str, str], names: Iterable[str]) -> str:
    return next((said[name] for name in names if name in said), "")

"""Dead letters as the console shows them and sends them back (their headers: `client.dead_letter_headers`).

Sent back, a letter is the record as it was, without the headers that tell of the failure, and with one more
attempt in `tidelog.dlq.attempts`.
"""

from dataclasses import dataclass

from tidelog.client.dead_letter_headers import ATTEMPTS, read_headers
from tidelog.console.record_view import RecordView

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
        kept = read_headers(self.record.headers).headers
        return [*kept, (ATTEMPTS, str(self.attempts + 1).encode())]


def dead_letter(record: RecordView) -> DeadLetter | None:
    """What a record says about its failure; None where it is no dead letter."""
    failure = read_headers(record.headers)
    if not failure.topic:
        return None
    partition = "?" if failure.partition is None else failure.partition
    offset = "?" if failure.offset is None else failure.offset
    return DeadLetter(
        record,
        failure.topic,
        failure.reason or "",
        failure.pipeline or "",
        f"{failure.topic}-{partition} @ {offset}",
        failure.attempts,
    )

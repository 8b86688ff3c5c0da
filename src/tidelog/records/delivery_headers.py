"""The headers by which a record says when it is to be delivered, on topics that opted in.

    tidelog-deliver-at    when it is due: milliseconds since 1970, or a time as RFC 3339 writes it
    tidelog-delay-ms      how long after its timestamp it is due
    tidelog-cancel        it is not delivered; it cancels what waits with its key (any value)
    tidelog-ttl-ms        how long after its timestamp it expires
    tidelog-priority      0 to 9, the highest first; 4 without it

A record has at most one of the first three, once. Without one it is due after the delay of its topic; a
tombstone (a key and no value) then cancels as `tidelog-cancel` does. Batches of topics that did not opt in
are never looked into.
"""

import re
from datetime import datetime

from tidelog.model.identifiers import NO_TIMESTAMP
from tidelog.model.log_config import INT64_MAX
from tidelog.records.record import Record

DELIVER_AT = "tidelog-deliver-at"
DELAY_MS = "tidelog-delay-ms"
CANCEL = "tidelog-cancel"
TTL_MS = "tidelog-ttl-ms"
PRIORITY = "tidelog-priority"
PRIORITY_DEFAULT = 4

_DELIVERY = (DELIVER_AT, DELAY_MS, CANCEL)
_NUMBER = re.compile(r"[0-9]{1,19}")
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_VALUE_BYTES_MAX = 64


class BadHeader(ValueError):
    """A header that cannot be obeyed, in words for its producer."""


def due_of(record: Record, delay_ms: int) -> int | None:
    """When a record of a delay topic is due, None if it cancels; `delay_ms` is its topic's delay.

    Raises `BadHeader`.
    """
    if not record.headers:
        if record.value is None and record.key is not None:
            return None
        return _after(record, delay_ms)
    given = [(name, value) for name, value in record.headers if name in _DELIVERY]
    if not given:
        return due_of(record._replace(headers=()), delay_ms)
    if len(given) > 1:
        raise BadHeader(
            f"It has {' and '.join(name for name, _ in given[:3])}; it may have one of them, once."
        )
    [(name, value)] = given
    if name == CANCEL:
        if record.key is None:
            raise BadHeader(f"{CANCEL} cancels what has the same key, and the record has none.")
        return None
    if name == DELAY_MS:
        return _after(record, _number(name, value))
    return _moment(value)


def lenient_due_of(record: Record, delay_ms: int) -> int | None:
    """As `due_of`, of a record that was appended before its topic had the rules: a bad header means now."""
    try:
        return due_of(record, delay_ms)
    except BadHeader:
        return 0


def due_fault(record: Record, delay_ms: int, latest_ms: int) -> str | None:
    """What is wrong with the delivery headers of a record; `latest_ms` is how late it may be due."""
    try:
        due_ms = due_of(record, delay_ms)
    except BadHeader as fault:
        return str(fault)
    if due_ms is not None and due_ms > latest_ms:
        return f"It is due at {due_ms}, and tidelog.delay.max.ms ends at {latest_ms}."
    return None


def expiry_of(record: Record, ttl_ms: int) -> int | None:
    """When a record expires, None if never; `ttl_ms` is its topic's, -1 for never. Raises `BadHeader`."""
    given = [value for name, value in record.headers if name == TTL_MS] if record.headers else []
    if len(given) > 1:
        raise BadHeader(f"It has {TTL_MS} more than once.")
    if given:
        ttl_ms = _number(TTL_MS, given[0])
        if record.timestamp_ms == NO_TIMESTAMP:
            raise BadHeader("A time to live begins with the timestamp of the record, and it has none.")
    if ttl_ms < 0 or record.timestamp_ms == NO_TIMESTAMP:
        return None
    return min(INT64_MAX, record.timestamp_ms + ttl_ms)


def lenient_expiry_of(record: Record, ttl_ms: int) -> int | None:
    """As `expiry_of`, of a record that was appended before its topic had the rules: a bad header is none."""
    try:
        return expiry_of(record, ttl_ms)
    except BadHeader:
        return None


def priority_of(record: Record) -> int:
    """The priority of a record. Raises `BadHeader`."""
    given = [value for name, value in record.headers if name == PRIORITY] if record.headers else []
    if not given:
        return PRIORITY_DEFAULT
    text = _text(PRIORITY, given[0])
    if len(given) > 1 or len(text) != 1 or text not in "0123456789":
        raise BadHeader(f"{PRIORITY} must be one digit, 0 to 9, and there once; not {text!r}.")
    return int(text)


def lifetime_fault(record: Record, *, expires: bool, has_priority: bool) -> str | None:
    """What is wrong with the other headers of a record, where its topic obeys them."""
    try:
        if expires:
            expiry_of(record, -1)
        if has_priority:
            priority_of(record)
    except BadHeader as fault:
        return str(fault)
    return None


def _after(record: Record, delay_ms: int) -> int:
    if record.timestamp_ms == NO_TIMESTAMP:
        raise BadHeader("A delay begins with the timestamp of the record, and it has none.")
    return min(INT64_MAX, record.timestamp_ms + delay_ms)


def _text(name: str, value: bytes | None) -> str:
    if value is None or len(value) > _VALUE_BYTES_MAX:
        raise BadHeader(f"{name} needs a value of at most {_VALUE_BYTES_MAX} bytes.")
    return str(value, "utf-8", "replace")


def _number(name: str, value: bytes | None) -> int:
    text = _text(name, value)
    if _NUMBER.fullmatch(text) is None or int(text) > INT64_MAX:
        raise BadHeader(f"{name} must be a whole number of milliseconds, not {text!r}.")
    return int(text)


def _moment(value: bytes | None) -> int:
    text = _text(DELIVER_AT, value)
    if _NUMBER.fullmatch(text) is not None:
        return _number(DELIVER_AT, value)
    if _RFC_3339.fullmatch(text) is None:
        raise BadHeader(
            f"{DELIVER_AT} must be milliseconds since 1970 or a time like 2030-01-31T08:00:00Z, not {text!r}."
        )
    try:
        moment = datetime.fromisoformat(text.upper())
        microseconds = round((moment - _EPOCH).total_seconds() * 1_000_000)
    except (ValueError, OverflowError):
        raise BadHeader(f"{DELIVER_AT} is no time that there is: {text!r}.") from None
    # A part of a millisecond counts as a whole one: nothing is delivered early.
    return max(0, -(-microseconds // 1_000))


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

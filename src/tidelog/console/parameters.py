"""Values out of queries and forms, checked; a fault names the field."""

import datetime
from collections.abc import Mapping

from tidelog.console.faults import ConsoleFault

INT64_MAX = 2**63 - 1


def integer(
    fields: Mapping[str, str], name: str, default: int | None = None, least: int = 0, most: int = INT64_MAX
) -> int:
    """A whole number within bounds; the default where the field is empty."""
    text = fields.get(name, "").strip()
    if not text:
        if default is None:
            raise ConsoleFault(f"{name} is missing")
        return default
    try:
        number = int(text)
    except ValueError:
        raise ConsoleFault(f"{name} is {text[:40]!r}, not a whole number") from None
    if not least <= number <= most:
        raise ConsoleFault(f"{name} is {number}, not between {least} and {most}")
    return number


def optional_integer(
    fields: Mapping[str, str], name: str, least: int = 0, most: int = INT64_MAX
) -> int | None:
    if not fields.get(name, "").strip():
        return None
    return integer(fields, name, None, least, most)


def choice(fields: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first where the field is empty or unknown."""
    text = fields.get(name, "")
    return text if text in choices else choices[0]


def moment_ms(text: str) -> int:
    """A time in ms: a number of ms, or a date and time (of this machine where it names no zone)."""
    plain = text.strip()
    if plain.isdigit():
        return min(int(plain), INT64_MAX)
    try:
        return round(datetime.datetime.fromisoformat(plain).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConsoleFault(
            f"{text[:40]!r} is no time", "Write it as 2026-01-31T12:00:00 or as milliseconds."
        ) from None


def assignments(text: str) -> dict[str, str]:
    """Lines of name=value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConsoleFault(f"{line[:60]!r} is not name=value")
        found[name.strip()] = value.strip()
    return found

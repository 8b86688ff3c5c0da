"""What is secret among settings, and how it is shown: never.

A value is hidden by the name of its setting (the table of the client's settings, and names that look secret),
or by its look: the password in an address, `password=…` inside a line. What is hidden is hidden whole, so
its length does not show either.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tidelog.client.client_settings import OPTIONS, ClientSettings

MASK = "*****"
KAFKA_PREFIX = "kafka."

_SECRET_FIELDS = {field.name for field in fields(ClientSettings) if not field.repr} | {"sasl_jaas_config"}
#: names of client settings, and whether they are secret
_KNOWN = {name: field in _SECRET_FIELDS for field, row in OPTIONS.items() for name in row.names}
_LOOKS_SECRET = re.compile(
    r"passw(or)?d|passphrase|pwd|secret|token|credential|jaas|user[._-]?info|(private|api|access|account|signing)[._-]?key",
    re.IGNORECASE,
)
#: to the last '@' of the word: passwords have some too, though they should be written %40
_ADDRESS = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s:@/]*:)(?P<secret>\S*)(?=@)", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"""(?P<before>(?:passw(?:or)?d|passphrase|pwd|secret)\\?["']?\s*=\s*)"""
    r"""(?P<secret>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;&,]+)""",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether the value of a setting is nobody's business."""
    plain = name.lower().removeprefix(KAFKA_PREFIX)
    return _KNOWN[plain] if plain in _KNOWN else _LOOKS_SECRET.search(plain) is not None


def masked_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without the passwords in it: those that can be seen to be some, and the given ones."""
    for pattern in (_ADDRESS, _ASSIGNED):
        text = pattern.sub(rf"\g<before>{MASK}", text)
    for secret in sorted(set(secrets), key=len, reverse=True):
        # A password of two letters must not tear words apart.
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return text


def masked(value: Any, name: str = "") -> Any:
    """A value to show: of a setting, or of many by their names, however deep."""
    if isinstance(value, Mapping):
        return {key: masked(one, str(key)) for key, one in value.items()}
    if value is None or value == "" or isinstance(value, bool):
        return value
    if is_secret(name):
        return MASK
    if isinstance(value, list | tuple):
        return type(value)([masked(one) for one in value])
    return masked_text(value) if isinstance(value, str) else value


def secrets_of(value: Any, name: str = "") -> Iterator[str]:
    """What `masked` would hide."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from secrets_of(one, str(key))
    elif isinstance(value, str) and value:
        if is_secret(name):
            yield value
        for pattern in (_ADDRESS, _ASSIGNED):
            yield from (found["secret"].strip("\"'") for found in pattern.finditer(value))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from secrets_of(one, name)
    elif value is not None and not isinstance(value, bool) and is_secret(name):
        yield str(value)

"""Values that a schema does not take, and how those who write them say so."""

from typing import Any

_SHOWN_CHARACTERS = 60


class DoesNotFit(ValueError):
    """A value that a schema does not take; `place` is where it stands, as in `.lines[0].sku`."""

    def __init__(self, why: str, place: str = "") -> None:
        self.why = why
        self.place = place
        super().__init__(f"{place.removeprefix('.') or 'the value'}: {why}")


def shown(value: Any) -> str:
    """A value as it is named in a fault."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def hexadecimal(value: Any) -> bytes:
    """Bytes from 0x and hexadecimal digits, as the readers give them; raises DoesNotFit."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.startswith("0x"):
        try:
            return bytes.fromhex(value[2:])
        except ValueError:
            pass
    raise DoesNotFit(f"{shown(value)} is not 0x and hexadecimal digits, as bytes are written")

"""One wrong edit: an attribute of a class or a module that is there gets another value."""

from typing import Any


def edit(holder: Any, name: str, wrong: Any) -> None:
    """Replace what `holder` has under a name; what it does not have nobody would miss, so that is refused."""
    if not hasattr(holder, name):
        raise AttributeError(f"{holder!r} has no {name}: the wrong edit would break nothing")
    setattr(holder, name, wrong)

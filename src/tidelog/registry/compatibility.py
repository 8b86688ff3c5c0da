"""The seven levels of compatibility: which earlier versions count, and who must read whose data.

BACKWARD   the new schema reads what the latest version wrote     BACKWARD_TRANSITIVE   … what any version
wrote FORWARD    the latest version reads what the new schema writes    FORWARD_TRANSITIVE    … every
version reads it FULL       both                                                    FULL_TRANSITIVE       …
with every version NONE       anything goes
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.registry.formats.parsed import Parsed

NONE = "NONE"
LEVELS = (
    NONE,
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
DEFAULT_LEVEL = "BACKWARD"
MESSAGE_CHARACTERS_MAX = 2_000
DIFFERENCES_TOLD_MAX = 50


class Earlier(NamedTuple):
    """A version that is there already."""

    version: int
    schema: Parsed


def incompatibilities(level: str, policy: str, new: Parsed, earlier: Sequence[Earlier]) -> list[str]:
    """Why a schema may not follow the others, which are in their order; empty if it may.

    Like Confluent's, it stops at the first version that does not fit, the latest one first.
    """
    if level == NONE or not earlier:
        return []
    counted = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    for row in reversed(counted):
        found = []
        if level.startswith(("BACKWARD", "FULL")):
            found += new.unreadable(row.schema, policy)
        if level.startswith(("FORWARD", "FULL")):
            found += row.schema.unreadable(new, policy)
        if found:
            messages = [str(each) for each in found[:DIFFERENCES_TOLD_MAX]]
            return [
                *messages,
                f"{{oldSchemaVersion: {row.version}}}",
                f"{{oldSchema: '{row.schema.text[:MESSAGE_CHARACTERS_MAX]}'}}",
                f"{{compatibility: '{level}'}}",
            ]
    return []

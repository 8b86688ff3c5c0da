"""What a schema may be: bytes, depth and number of values, looked at before anything is built from it.

Schemas come from people who are logged in, and are read for everybody by one process. A comparison counts its
steps (`Steps`), for what a schema refers to can make it much larger than its text.
"""

import json
import re
from typing import Any

from tidelog.registry.faults import BadSchema, TooComplex

SCHEMA_BYTES_MAX = 1 << 20
#: brackets that are open at once
DEPTH_MAX = 200
VALUES_MAX = 50_000
REFERENCES_MAX = 200
STEPS_MAX = 30_000

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def read_json(text: str) -> Any:
    """The value of a JSON text within the limits; raises BadSchema."""
    depth = 0
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise BadSchema(f"more than {DEPTH_MAX} levels deep")
        elif token in "]}":
            depth -= 1
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadSchema(f"not JSON: {fault}") from fault
    _check_count(value)
    return value


def _check_count(value: Any) -> None:
    count = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        count += 1
        if count > VALUES_MAX:
            raise BadSchema(f"more than {VALUES_MAX} values")
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


class Steps:
    """Counts the steps of one comparison; raises TooComplex at the limit."""

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._left = steps_max

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooComplex("comparing the schemas would take too long")

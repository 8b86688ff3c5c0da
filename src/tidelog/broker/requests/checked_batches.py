"""What was found of batches whose check takes long (see long_checks), for the request that they came in."""

from typing import NamedTuple
from uuid import UUID

from tidelog.model.errors import Refused
from tidelog.records.batch import BatchHeader, read_header
from tidelog.records.validation import CheckedBatch, ProduceRules

Place = tuple[str | UUID, int]


class Found(NamedTuple):
    """What a check found of a batch (its header tells which), by the rules that counted then."""

    header: BatchHeader
    rules: ProduceRules
    checked: CheckedBatch | Refused


#: what was found of the batches of each partition, in order; None for those whose check is quick
Checked = dict[Place, list[Found | None]]


def take(
    found: Checked, topic: str | UUID, index: int, records: memoryview, rules: ProduceRules
) -> CheckedBatch | Refused | None:
    """What was found of the next batch for this partition; None if it was not checked by these rules."""
    of_place = found.get((topic, index))
    first = of_place.pop(0) if of_place else None
    if first is None or first.rules is not rules or first.header != read_header(records):
        return None
    return first.checked

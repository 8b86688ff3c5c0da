"""Partition specs as somebody writes them: `day(_timestamp), bucket(16, customer), country`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.client.faults import BadOption

_TIMES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
_FIELD = re.compile(r"\s*(?:(\w+)\s*\(\s*(?:(\d{1,6})\s*,\s*)?([^(),\s]+)\s*\)|([^(),\s]+))\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column, and what is made of it; `size` is of buckets and truncated texts."""

    column: str
    function: str = "identity"
    size: int | None = None

    @property
    def name(self) -> str:
        """Of the field of the partition, as Iceberg's Java library calls it."""
        endings = {"identity": "", "truncate": "_trunc"}
        return self.column + endings.get(self.function, f"_{self.function}")

    def transform(self) -> Any:
        """Of pyiceberg."""
        from pyiceberg.transforms import parse_transform

        return parse_transform(self.function if self.size is None else f"{self.function}[{self.size}]")

    def __str__(self) -> str:
        if self.function == "identity":
            return self.column
        return f"{self.function}({'' if self.size is None else f'{self.size}, '}{self.column})"


def partition_fields(written: Iterable[str]) -> tuple[PartitionField, ...]:
    """Read what a file or a command line says, cut at commas or not; raises BadOption."""
    text = ", ".join(written)
    found: list[PartitionField] = []
    position = 0
    while position < len(text):
        match = _FIELD.match(text, position)
        if match is None:
            raise _refused(text)
        position = match.end()
        function, size, column, alone = match.groups()
        if alone is not None:
            found.append(PartitionField(alone))
            continue
        kind = function.lower().removesuffix("s")
        if kind not in (*_TIMES, *_SIZED, "identity") or (kind in _SIZED) != (size is not None):
            raise _refused(text)
        found.append(PartitionField(column, kind, None if size is None else int(size)))
    if any(one.size == 0 for one in found):
        raise _refused(text)
    return tuple(found)


def _refused(text: str) -> BadOption:
    return BadOption(
        "partition_by has columns, year, month, day or hour(column), bucket(16, column) and "
        f"truncate(4, column), with commas between; not {text!r}"
    )

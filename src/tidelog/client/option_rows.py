"""Tables of options that people write as texts, and the one way to read them.

A row says how an option is called, what it holds, its default and its bounds; a table has a row for each
field that it fills. Names are found in any case, as Spark hands them over; two names of one option must not
differ in what they say. What cannot be meant raises BadOption, in words that say what to write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelog.client.faults import BadOption

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Holds(Enum):
    """What the text of an option is."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class OptionRow:
    """An option; the first of its names is the one that messages use."""

    names: tuple[str, ...]
    holds: Holds = Holds.TEXT
    default: Any = None
    least: int = 0
    most: int = INT32_MAX
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]

    def read(self, text: str) -> Any:
        """The typed value; raises BadOption."""
        match self.holds:
            case Holds.TEXT:
                return text
            case Holds.NUMBER:
                return self._number(text)
            case Holds.FLAG:
                return self._one_of(text, ("true", "false")) == "true"
            case Holds.CHOICE:
                return self._one_of(text, self.choices)

    def _number(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise BadOption(f"{self.name} is a number, not {text!r}") from None
        if number < self.least:
            raise BadOption(f"{self.name} is at least {self.least}, not {number}")
        if number > self.most:
            raise BadOption(f"{self.name} is at most {self.most}, not {number}")
        return number

    def _one_of(self, text: str, choices: tuple[str, ...]) -> str:
        word = text.lower().replace("-", "_")
        if word not in choices:
            known = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
            raise BadOption(f"{self.name} is {known}, not {text!r}")
        return word


def text(*names: str, default: str | None = None) -> OptionRow:
    return OptionRow(names, default=default)


def number(*names: str, default: int | None = None, least: int = 0, most: int = INT32_MAX) -> OptionRow:
    return OptionRow(names, Holds.NUMBER, default, least, most)


def flag(*names: str, default: bool | None = None) -> OptionRow:
    return OptionRow(names, Holds.FLAG, default)


def choice(*names: str, choices: tuple[str, ...], default: str | None = None) -> OptionRow:
    return OptionRow(names, Holds.CHOICE, default, choices=choices)


def sort_out(table: Mapping[str, OptionRow], options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The texts of the options that a table has, by its fields, and the names of the others."""
    field_by_name = {name.lower(): field for field, row in table.items() for name in row.names}
    given: dict[str, str] = {}
    spelled: dict[str, str] = {}
    others: list[str] = []
    for name in sorted(options):
        field = field_by_name.get(name.lower())
        if field is None:
            others.append(name)
            continue
        written = str(options[name]).strip()
        if given.get(field, written) != written:
            raise BadOption(f"{name} and {spelled[field]} mean the same and have different values")
        given[field], spelled[field] = written, name
    return given, others


def read_table(table: Mapping[str, OptionRow], options: Mapping[str, str]) -> dict[str, Any]:
    """The value of every field of a table: what is given, or its default."""
    given, _ = sort_out(table, options)
    return {field: row.read(given[field]) if field in given else row.default for field, row in table.items()}

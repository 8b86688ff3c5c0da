"""The options of a pipeline as a table: one row says the name, the type, the default and what it is for.

`check_options` turns what a person wrote (YAML values, or the texts of a command line) into typed values, and
says in words what is missing, misspelt or of another type. Nothing here knows Spark.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.client.masking import masked
from tidelog.pipelines.problems import Misplaced, at

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
#: the units that Spark knows
_DURATION = re.compile(
    r"(\d+) *((?:microsecond|millisecond|second|minute|hour|day|week|month|year)s?)", re.IGNORECASE
)


class OptionType(Enum):
    """What an option holds."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    #: Spark's words, '10 seconds'; kept as text
    DURATION = "duration"
    #: texts; a command line writes them with commas between
    LIST = "list"
    #: names and texts; a command line writes 'name=value,name=value'
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. An option without a default is None when it is not given."""

    name: str
    type: OptionType
    sentence: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    #: what is read or written: a checkpoint is for this value alone (`begun_with`)
    identity: bool = False
    #: whether it names a folder that the pipeline writes
    written_folder: bool = False

    def read(self, value: Any) -> Any:
        """The typed value of what was written; raises BadOption."""
        try:
            read = _READERS[self.type](value)
        except (ValueError, TypeError):
            kind = f"{self.type.value}{_LIKE.get(self.type, '')}"
            raise BadOption(f"{self.name} is of type {kind}{self._not(value)}") from None
        if self.choices and read not in self.choices:
            raise BadOption(f"{self.name} is one of {', '.join(self.choices)}{self._not(value)}")
        return read

    def _not(self, value: Any) -> str:
        """What was written, unless it may be somebody's password."""
        if self.type is OptionType.MAP:
            return ": name=value,name=value, or a mapping"
        return f", not {masked(value, self.name)!r}"


def _text(value: Any) -> str:
    if isinstance(value, list | dict) or value is None:
        raise ValueError(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise ValueError(value)
    return int(value)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(value)
    return word in _TRUE


def duration(value: Any) -> str:
    """'10 seconds' of what somebody wrote, with the space that Spark wants; raises ValueError."""
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        raise ValueError(value)
    return f"{found[1]} {found[2].lower()}"


def _list(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, Mapping):
        raise ValueError(value)
    return tuple(_text(item).strip() for item in items)


def _map(value: Any) -> Mapping[str, str]:
    if isinstance(value, str):
        pairs = [pair.partition("=") for pair in value.split(",") if pair]
        if not all(separator for _, separator, _ in pairs):
            raise ValueError(value)
        return {name.strip(): text.strip() for name, _, text in pairs}
    if not isinstance(value, Mapping):
        raise ValueError(value)
    return {str(name): _text(text) for name, text in value.items()}


#: what one looks like, where the name of the type does not say it
_LIKE: Mapping[OptionType, str] = {
    OptionType.FLAG: " (true or false)",
    OptionType.DURATION: " (like '10 seconds' or '1 hour')",
}
_READERS: Mapping[OptionType, Any] = {
    OptionType.TEXT: _text,
    OptionType.INTEGER: _integer,
    OptionType.NUMBER: float,
    OptionType.FLAG: _flag,
    OptionType.DURATION: duration,
    OptionType.LIST: _list,
    OptionType.MAP: _map,
}


class Options(Mapping[str, Any]):
    """Checked options: every name of the table is there, typed; what was not given has its default."""

    __slots__ = ("_values", "given")

    def __init__(self, values: Mapping[str, Any], given: Iterable[str] = ()) -> None:
        self._values = dict(values)
        #: the names that a person wrote
        self.given = frozenset(given)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = masked(self._values)
        return f"<Options {' '.join(f'{name}={value!r}' for name, value in shown.items())}>"


def check_options(table: Iterable[Option], given: Mapping[str, Any], *, of: str) -> Options:
    """Read `given` by the table of the pipeline called `of`; raises BadOption."""
    rows = {option.name: option for option in table}
    written = {str(name).replace("-", "_"): value for name, value in given.items()}
    for name in written:
        if name not in rows:
            near = difflib.get_close_matches(name, rows, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(rows)}"
            raise Misplaced(f"{of} has no option {name}{meant}", (name,))
    values: dict[str, Any] = {}
    for name, option in rows.items():
        if written.get(name) is not None:
            with at(name):
                values[name] = option.read(written[name])
        elif option.required:
            raise BadOption(f"{of} needs the option {name}: {option.sentence}")
        else:
            values[name] = option.default
    return Options(values, [name for name in written if written[name] is not None])


def check_one_topic(options: Mapping[str, Any], *, of: str) -> None:
    """Refuse several topics where offsets of one are compared; raises BadOption."""
    source = {name.lower(): text for name, text in options["source"].items()}
    if "subscribepattern" in source:
        many = True
    elif "assign" in source:
        # What is no JSON is refused where it is read.
        many = source["assign"].count("[") > 1
    else:
        many = "," in source.get("subscribe", options["topic"])
    if many:
        raise BadOption(f"{of} reads one topic, whose offsets say what is newer: run one {of} for each")

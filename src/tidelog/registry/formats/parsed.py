"""What every format gives: a schema that was read."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

STRICT = "STRICT"
LENIENT = "LENIENT"


class Referenced(NamedTuple):
    """A schema that another one refers to, by the name that it uses."""

    name: str
    text: str
    #: where it is registered; the same place is the same schema
    subject: str
    version: int


class Difference(NamedTuple):
    """Why data of one schema cannot be read with another: Confluent's name of the kind, and where."""

    kind: str
    path: str
    detail: str = ""

    def __str__(self) -> str:
        told = f" ({self.detail})" if self.detail else ""
        words = _WORDS.get(self.kind, _spoken(self.kind))
        return f'{{errorType:"{self.kind}", description:"{words} at path \'{self.path}\'{told}"}}'


class Parsed(ABC):
    """A schema that can be used."""

    #: the text that is kept
    text: str

    @abstractmethod
    def normalized(self) -> str:
        """The text that is kept when the order of things that mean nothing is not to matter."""

    @abstractmethod
    def unreadable(self, previous: "Parsed", policy: str) -> list[Difference]:
        """Why data of `previous` could not be read with this schema; empty if it can."""

    def identity(self) -> str:
        """Equal for schemas that are the same, however they are written."""
        return self.text

    def rendered(self, form: str) -> str:
        """The text in a form that a client asks for (`format=`); unknown ones are the usual one."""
        return self.text


_WORDS: Mapping[str, str] = {
    "READER_FIELD_MISSING_DEFAULT_VALUE": "a field that the old schema does not have needs a default value",
    "NAME_MISMATCH": "the name of a type has changed",
    "TYPE_MISMATCH": "the type has changed to one that cannot read the old one",
    "MISSING_UNION_BRANCH": "the union lacks a type of the old schema",
    "MISSING_ENUM_SYMBOLS": "the enum lacks symbols of the old schema and has no default",
    "FIXED_SIZE_MISMATCH": "the size of a fixed type has changed",
}


def _spoken(kind: str) -> str:
    return kind.lower().replace("_", " ")

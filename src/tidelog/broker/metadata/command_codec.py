"""Controller commands and their results as JSON, for the way between brokers.

    request    {"command": {"@": "CreateTopics", "topics": [...], ...}, "timeout_ms": 29000}
    answer     {"results": [{"@": "TopicCreated", ...}, ...], "sequence": 17}     decided, as of change 17
               {"not_controller": true}                                          ask somebody else

Fields follow the annotations of the dataclasses in `controller/commands.py`: a mapping of field names, lists
for tuples, text for UUIDs, base64 for bytes, numbers for enumerations; `@` names the class. Fields may be
added with defaults: a broker of an older version leaves them out.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from tidelog.controller.commands import Command, Result

Decode = Callable[[Any], Any]
_CLASS = "@"


class MalformedCommand(ValueError):
    """What came is no command, or no answer to one."""


class NotController(NamedTuple):
    """The broker that was asked is not the controller."""


class Decided(NamedTuple):
    """The results, and the number of the change from which on images show them."""

    results: tuple[Result, ...]
    sequence: int


def encode_command(command: Command, timeout_ms: int) -> bytes:
    """The body of a request; the sender waits for so long."""
    fields = {"command": _plain(command), "timeout_ms": timeout_ms}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_command(body: bytes | memoryview) -> tuple[Command, int]:
    """Read the body of a request: the command, and how long its sender waits; raises MalformedCommand."""

    def read(fields: Any) -> tuple[Command, int]:
        return _decoder(Command)(fields["command"]), _decoder(int)(fields["timeout_ms"])

    return cast(tuple[Command, int], _decoded(body, read))


def encode_answer(answer: Decided | NotController) -> bytes:
    """The body of an answer."""
    fields: dict[str, object] = {"not_controller": True}
    if isinstance(answer, Decided):
        fields = {"results": [_plain(result) for result in answer.results], "sequence": answer.sequence}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_answer(body: bytes | memoryview) -> Decided | NotController:
    """Read the body of an answer; raises MalformedCommand."""

    def read(fields: Any) -> Decided | NotController:
        if fields.get("not_controller"):
            return NotController()
        decode = _decoder(Result)
        return Decided(tuple(decode(result) for result in fields["results"]), int(fields["sequence"]))

    return cast(Decided | NotController, _decoded(body, read))


def _decoded(body: bytes | memoryview, read: Decode) -> object:
    try:
        return read(json.loads(bytes(body)))
    except RecursionError:
        # Nothing of ours is nested like that; the text would say nothing more.
        raise MalformedCommand("it is nested too deeply") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise MalformedCommand(f"{error!r} in {bytes(body[:200])!r}") from error


def _plain(value: object) -> object:
    """A value as JSON knows it; every dataclass says its type."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {_CLASS: type(value).__name__, **plain}
    if isinstance(value, (str, bool, NoneType)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    assert isinstance(value, Mapping), f"{type(value).__name__} has no form between brokers"
    return {str(key): _plain(item) for key, item in value.items()}


@cache
def _decoder(kind: Any) -> Decode:
    """The function that reads a value of an annotated type."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin in (Union, UnionType):
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is not None and issubclass(origin, Mapping):
        decode_item = _decoder(arguments[1])
        return lambda value: {str(key): decode_item(item) for key, item in value.items()}
    if kind is UUID:
        return UUID
    if kind is bytes:
        return lambda value: base64.b64decode(value, validate=True)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return kind
    if kind in (str, int, bool):
        return _checked(kind)
    if kind is float:
        return float
    if is_dataclass(kind):
        return _dataclass_decoder(cast(type, kind))
    assert issubclass(kind, tuple), f"no way to read {kind}"
    decoders = [_decoder(hint) for hint in get_type_hints(kind).values()]
    return lambda value: kind(*(decode(item) for decode, item in zip(decoders, value, strict=True)))


def _checked(kind: type) -> Decode:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return check


def _union_decoder(kinds: tuple[Any, ...]) -> Decode:
    classes: dict[str, Any] = {}
    others: list[Any] = []
    for kind in kinds:
        if isinstance(kind, type) and is_dataclass(kind):
            classes[kind.__name__] = kind
        elif kind is not NoneType:
            others.append(kind)
    assert len(others) + bool(classes) == 1, f"cannot tell {kinds} apart"

    def decode(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        return _decoder(classes[value[_CLASS]] if classes else others[0])(value)

    return decode


def _tuple_decoder(kinds: tuple[Any, ...]) -> Decode:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        decode_item = _decoder(kinds[0])
        return lambda value: tuple(decode_item(item) for item in _list(value))
    decoders = [_decoder(kind) for kind in kinds]
    return lambda value: tuple(decode(item) for decode, item in zip(decoders, _list(value), strict=True))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _dataclass_decoder(kind: type) -> Decode:
    hints = get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}

    def decode(value: Any) -> Any:
        return kind(**{name: decode(value[name]) for name, decode in decoders.items() if name in value})

    return decode

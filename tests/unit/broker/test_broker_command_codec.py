"""Commands and results between brokers: every class there and back, and bytes that are neither."""

import typing
from dataclasses import fields, is_dataclass
from enum import IntEnum
from random import Random
from types import NoneType, UnionType
from typing import Any
from uuid import UUID

import pytest

from tidelog.broker.metadata.command_codec import (
    Decided,
    MalformedCommand,
    NotController,
    decode_answer,
    decode_command,
    encode_answer,
    encode_command,
)
from tidelog.controller.commands import Command, CreateTopics, Result, TopicSpec

#: deeper than any parser goes
NESTED = b'{"command":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
COMMANDS = typing.get_args(Command)
RESULTS = typing.get_args(Result)


def example(kind: Any, random: Random) -> Any:
    """A value of an annotated type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return example(random.choice(arguments), random)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return tuple(example(arguments[0], random) for _ in range(random.randrange(3)))
    if origin is tuple:
        return tuple(example(argument, random) for argument in arguments)
    if origin is not None:
        return {f"key {n}": example(arguments[1], random) for n in range(random.randrange(3))}
    if kind is NoneType:
        return None
    if kind is UUID:
        return UUID(int=random.getrandbits(128))
    if issubclass(kind, IntEnum):
        return random.choice(list(kind))
    if kind is bool:
        return random.random() < 0.5
    if kind is int:
        return random.randrange(-(2**62), 2**62)
    if kind is float:
        return random.random() * 1e6
    if kind is str:
        return "".join(random.choice('a"\\/\n\tö\U0001f600') for _ in range(random.randrange(5)))
    hints = typing.get_type_hints(kind)
    if is_dataclass(kind):
        return kind(**{field.name: example(hints[field.name], random) for field in fields(kind)})  # type: ignore[operator]
    return kind(*(example(hint, random) for hint in hints.values()))


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_comes_back(kind: Any) -> None:
    for seed in range(20):
        command = example(kind, Random(seed))
        decoded, timeout_ms = decode_command(memoryview(encode_command(command, seed)))
        assert decoded == command and type(decoded) is kind and timeout_ms == seed


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_every_result_comes_back(kind: Any) -> None:
    for seed in range(20):
        answer = Decided((example(kind, Random(seed)), example(kind, Random(seed + 100))), seed)
        decoded = decode_answer(memoryview(encode_answer(answer)))
        assert decoded == answer
        assert isinstance(decoded, Decided) and type(decoded.results[0]) is kind


def test_not_the_controller() -> None:
    assert decode_answer(encode_answer(NotController())) == NotController()


def test_fields_with_defaults_may_be_missing() -> None:
    body = b'{"command":{"@":"CreateTopics","topics":[{"@":"TopicSpec","name":"t"}]},"timeout_ms":5}'
    assert decode_command(body) == (CreateTopics((TopicSpec("t"),)), 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"command":null}',
        b'{"command":{"@":"Unknown"}}',
        b'{"command":{"@":"CreateTopics"}}',
        b'{"command":{"@":"CreateTopics","topics":"t"}}',
        b'{"command":{"@":"CreateTopics","topics":[3]}}',
        b'{"command":{"@":"CreateTopics","topics":[{"name":7}]}}',
        b'{"command":{"@":"AllocateProducerIds","broker_id":1}}',
        b'{"command":{"@":"AllocateProducerIds","broker_id":1},"timeout_ms":"5"}',
        b'{"command":{"@":"AllocateProducerIds","broker_id":"1"}}',
        b'{"command":{"@":"AllocateProducerIds","broker_id":true}}',
    ],
)
def test_what_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedCommand):
        decode_command(body)


def test_what_is_no_answer_is_refused() -> None:
    for body in (b"{}", b'{"results":[{}],"sequence":1}', b'{"results":[],"sequence":"x"}', b"7"):
        with pytest.raises(MalformedCommand):
            decode_answer(body)


@pytest.mark.parametrize("decode", [decode_command, decode_answer])
def test_what_is_nested_without_end_is_malformed(decode: typing.Callable[[bytes], object]) -> None:
    with pytest.raises(MalformedCommand, match="nested"):
        decode(NESTED)

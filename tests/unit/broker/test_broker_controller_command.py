"""ControllerCommand as a frame: decided, refused, malformed, and hidden from clients."""

import struct

import pytest

from tests.unit.broker.node import NodeUnderTest
from tidelog.broker.metadata.command_codec import Decided, NotController, decode_answer, encode_command
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.controller.commands import (
    AllocateProducerIds,
    BrokersChanged,
    CreateTopics,
    ProducerIdBlock,
    TopicCreated,
    TopicSpec,
)
from tidelog.protocol.apis import APIS, CONTROLLER_COMMAND


def frame(body: bytes, version: int = 0) -> bytes:
    return struct.pack(">hhih", CONTROLLER_COMMAND, version, 5, 8) + b"broker-2" + body


def answer_of(raw: object) -> Decided | NotController:
    if isinstance(raw, PendingAnswer):
        raw = raw.chunks
    assert isinstance(raw, bytes)
    size, correlation_id = struct.unpack_from(">ii", raw)
    assert size == len(raw) - 4 and correlation_id == 5
    return decode_answer(raw[8:])


def test_a_command_of_another_broker_is_decided() -> None:
    node = NodeUnderTest()
    answer = answer_of(node.handle(frame(encode_command(CreateTopics((TopicSpec("t", 3, 1),)), 1_000))))
    assert isinstance(answer, Decided) and isinstance(answer.results[0], TopicCreated)
    assert answer.sequence == node.broker.metadata.sequence and "t" in node.broker.image.topics
    answer = answer_of(node.handle(frame(encode_command(AllocateProducerIds(2), 1_000))))
    assert isinstance(answer, Decided) and answer.results == (ProducerIdBlock(0, 1000),)


def test_a_broker_that_is_not_the_controller_says_so() -> None:
    node = NodeUnderTest()
    node.broker.metadata.stop()
    assert answer_of(node.handle(frame(encode_command(AllocateProducerIds(2), 1_000)))) == NotController()


@pytest.mark.parametrize(
    "raw",
    [
        frame(b""),
        frame(b"{}"),
        frame(b"\xff\xfe"),
        frame(encode_command(BrokersChanged((), 1), 1_000)),
        frame(encode_command(AllocateProducerIds(2), 1_000), version=1),
    ],
)
def test_what_is_no_command_closes_the_connection(raw: bytes) -> None:
    with pytest.raises(CloseConnection):
        NodeUnderTest().handle(raw)


def test_only_the_listener_of_brokers_takes_commands() -> None:
    node = NodeUnderTest(
        listeners="PLAINTEXT://:9092,CLIENTS://:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
    )
    node.context = ConnectionContext("127.0.0.1", 1, "CLIENTS")
    with pytest.raises(CloseConnection, match="not for brokers"):
        node.handle(frame(encode_command(AllocateProducerIds(2), 1_000)))


def test_clients_are_not_told_of_it() -> None:
    assert CONTROLLER_COMMAND not in APIS

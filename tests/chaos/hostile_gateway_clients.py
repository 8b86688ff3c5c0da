"""Connections to gateways that mean no good: made from a seed, one call for each."""

import contextlib
import random
import socket

from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tests.unit.gateways.test_mqtt_packets import PACKETS
from tidelog.gateways.mqtt import packets
from tidelog.gateways.mqtt.packets import V5, V311

CONNECT_SECONDS_MAX = 30.0
ANSWER_SECONDS = 0.02
PACKETS_MAX = 12
#: a packet that is announced with a megabyte, and never comes
_NEVER_WHOLE = b"\x30\xff\xff\x3f" + b"x" * 100_000
_AMQP_HANDSHAKE = (
    frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0),
    frame.marshal(commands.Connection.TuneOk(10, 4_096, 0), 0)
    + frame.marshal(commands.Connection.Open("/"), 0),
)


def attack_mqtt(port: int, choices: random.Random) -> None:
    """A CONNECT and packets behind it, some of the bytes changed."""
    version = choices.choice((V311, V5))
    seeds = [packets.encode(each, packet) for each, packet in PACKETS if each == version]
    name = f"bad-{choices.randrange(200)}"
    data = bytearray(packets.encode(version, packets.Connect(version, name, True, 5)))
    begins = choices.choice((0, len(data)))
    for _ in range(choices.randrange(PACKETS_MAX)):
        data += choices.choice(seeds)
    for _ in range(choices.randrange(4)):
        where = choices.randrange(begins, len(data)) if begins < len(data) else 0
        data[where : where + choices.randrange(3)] = choices.randbytes(choices.randrange(4))
    if choices.random() < 0.02:
        data += _NEVER_WHOLE
    with socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS_MAX) as stream:
        _send_and_look(stream, bytes(data))


def attack_amqp(port: int, choices: random.Random, queue: str) -> None:
    """A login, or the beginning of one, and frames behind it."""
    with socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS_MAX) as stream:
        with contextlib.suppress(OSError):
            stream.sendall(b"AMQP\x00\x00\x09\x01" if choices.random() < 0.9 else choices.randbytes(9))
            for data in _AMQP_HANDSHAKE[: choices.choice((0, 1, 2, 2, 2, 2))]:
                stream.recv(4_096)
                stream.sendall(data)
        _send_and_look(stream, _hostile_frames(choices, queue))


def _send_and_look(stream: socket.socket, data: bytes) -> None:
    """Half of them read what is answered, the others go at once."""
    with contextlib.suppress(OSError):
        stream.sendall(data)
        stream.settimeout(ANSWER_SECONDS)
        if len(data) % 2:
            stream.recv(4_096)


def _hostile_frames(choices: random.Random, queue: str) -> bytes:
    """Methods in an order in which nobody sends them, contents of nothing, bytes that are no frames."""
    methods = [
        commands.Channel.Open(),
        commands.Channel.Close(200, "", 0, 0),
        commands.Channel.CloseOk(),
        commands.Basic.Publish(0, "", queue, True),
        commands.Basic.Publish(0, "none", queue),
        commands.Basic.Ack(choices.randrange(9), True),
        commands.Basic.Nack(choices.randrange(9)),
        commands.Basic.Qos(0, choices.randrange(9), False),
        commands.Basic.Consume(0, queue, str(choices.randrange(3))),
        commands.Basic.Cancel(str(choices.randrange(3))),
        commands.Basic.Recover(True),
        commands.Basic.Get(0, queue),
        commands.Confirm.Select(),
        commands.Tx.Select(),
        commands.Queue.Declare(0, queue, True),
        commands.Connection.Open("/"),
    ]
    data = bytearray()
    for _ in range(choices.randint(1, PACKETS_MAX)):
        channel = choices.choice((0, 1, 1, 1, 1, 2, 300))
        kind = choices.random()
        if kind < 0.7:
            data += frame.marshal(choices.choice(methods), channel)
        elif kind < 0.8:
            data += frame.marshal(ContentHeader(0, choices.choice((0, 3, 2**60))), channel)
        elif kind < 0.9:
            data += frame.marshal(ContentBody(b"abc"), channel)
        else:
            data += choices.randbytes(choices.randint(1, 40))
    if choices.random() < 0.3:
        where = choices.randrange(len(data))
        data[where : where + 1] = choices.randbytes(choices.randrange(3))
    return bytes(data)

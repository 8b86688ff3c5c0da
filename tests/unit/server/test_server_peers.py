"""The asyncio transport between brokers, against a real broker and against peers that misbehave."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.runtime.peers import PeerFault
from tidelog.client.requests import decode_response, encode_request
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.server import peers as peers_module
from tidelog.server.node import Node
from tidelog.server.peers import AsyncPeers

DESCRIBE_CLUSTER = 60
FIND_COORDINATOR = 10
PRIVATE_API = 10_000
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(bounded())


class Asked:
    """Sends requests and collects what came of them, copied out of the receive buffer."""

    def __init__(self, peers: AsyncPeers) -> None:
        self.peers = peers
        self.outcomes: list[Any] = []

    def send(
        self, body: bytes = b"", *, timeout_ms: int = 5_000, channel: str = "control"
    ) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()

        def then(answer: memoryview | PeerFault) -> None:
            outcome = answer if isinstance(answer, PeerFault) else bytes(answer)
            self.outcomes.append(outcome)
            future.set_result(outcome)

        self.peers.request(7, PRIVATE_API, 0, body, then, timeout_ms=timeout_ms, channel=channel)
        assert not future.done(), "never before request returned"
        return future


async def listening(serve: Serve) -> tuple[AsyncPeers, asyncio.Server]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    peers = AsyncPeers(asyncio.get_running_loop(), 3)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    peers.find_endpoint = lambda broker_id: endpoint if broker_id == 7 else None
    return peers, server


async def read_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Correlation id and body of a request of the private API."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
    assert (key, version, frame[10 : 10 + length]) == (PRIVATE_API, 0, b"broker-3")
    return correlation_id, frame[10 + length :]


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            correlation_id, body = await read_request(reader)
            writer.write(answer(correlation_id, body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def test_a_real_broker_answers_in_old_and_new_headers(tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "7"}
        node = Node(BrokerSettings.resolve(settings))
        ready = await node.start()
        loop = asyncio.get_running_loop()
        peers = AsyncPeers(loop, 3)
        peers.find_endpoint = lambda broker_id: Endpoint("127.0.0.1", int(ready.bootstrap.split(":")[1]))
        answers: list[Any] = []
        done = loop.create_future()

        def first(body: memoryview | PeerFault) -> None:
            assert isinstance(body, memoryview), body
            answers.append(decode_response(DESCRIBE_CLUSTER, 1, body))

        def second(body: memoryview | PeerFault) -> None:
            assert isinstance(body, memoryview), body
            answers.append(decode_response(FIND_COORDINATOR, 1, body))
            done.set_result(None)

        request = encode_request(DESCRIBE_CLUSTER, 1, {"endpoint_type": 1})
        peers.request(7, DESCRIBE_CLUSTER, 1, request, first, timeout_ms=5_000)
        request = encode_request(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
        peers.request(7, FIND_COORDINATOR, 1, [request], second, timeout_ms=5_000)
        await done
        assert answers[0].cluster_id == ready.cluster_id
        assert [broker.broker_id for broker in answers[0].brokers] == [7]
        peers.close()
        await node.stop()

    run(test)


def test_requests_are_pipelined_over_one_connection_and_answered_in_order() -> None:
    async def test() -> None:
        connections: list[int] = []

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(1)
            await echo(reader, writer)

        peers, server = await listening(count)
        asked = Asked(peers)
        bodies = [b"%d" % number for number in range(3 * peers_module.IN_FLIGHT_MAX)]
        await asyncio.gather(*[asked.send(body) for body in bodies])
        assert asked.outcomes == bodies
        assert len(connections) == 1
        await asked.send(b"x", channel="fetch")
        assert len(connections) == 2
        peers.close()
        server.close()

    run(test)


def test_large_answers_come_whole_and_from_a_buffer_that_stays() -> None:
    async def test() -> None:
        peers, server = await listening(echo)
        asked = Asked(peers)
        for size in (1, 70_000, 3 << 20, 5, (3 << 20) - 9, 0):
            body = bytes(range(256)) * (size // 256 + 1)
            assert await asked.send(body[:size]) == body[:size]
        link = next(iter(peers._links.values()))
        assert len(link._buffer) == (3 << 20) + 8
        for _ in range(peers_module.SMALL_ANSWERS_BEFORE_SHRINKING):
            await asked.send(b"small")
        assert len(link._buffer) == peers_module.RECEIVE_BUFFER_BYTES_DEFAULT
        peers.close()
        server.close()

    run(test)


def test_an_answer_that_does_not_come_ends_the_connection_and_the_next_one_works() -> None:
    async def test() -> None:
        connections: list[int] = []

        async def silent_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(1)
            if len(connections) == 1:
                await read_request(reader)
                await reader.read()
                writer.close()
            else:
                await echo(reader, writer)

        peers, server = await listening(silent_once)
        asked = Asked(peers)
        outcomes = await asyncio.gather(asked.send(b"a", timeout_ms=50), asked.send(b"b", timeout_ms=5_000))
        assert all(isinstance(outcome, PeerFault) and "timed out" in outcome.reason for outcome in outcomes)
        assert await asked.send(b"c") == b"c"
        assert len(connections) == 2
        peers.close()
        server.close()

    run(test)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda correlation_id: answer(correlation_id + 1, b""), "not next"),
        (lambda correlation_id: struct.pack(">i", -5), "announced"),
        (lambda correlation_id: struct.pack(">i", (100 << 20) + 1), "announced"),
        (lambda correlation_id: b"", "lost"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_a_fault(reply: Callable[[int], bytes], reason: str) -> None:
    async def test() -> None:
        async def bad(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            correlation_id, _ = await read_request(reader)
            writer.write(reply(correlation_id))
            await writer.drain()
            writer.close()

        peers, server = await listening(bad)
        outcome = await Asked(peers).send()
        assert isinstance(outcome, PeerFault)
        assert reason in outcome.reason
        peers.close()
        server.close()

    run(test)


def test_nobody_listening_an_unknown_broker_and_a_stopped_transport_are_faults() -> None:
    async def test() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = Endpoint("127.0.0.1", unused.getsockname()[1])
            peers = AsyncPeers(asyncio.get_running_loop(), 3)
            assert "no known address" in (await Asked(peers).send()).reason
            peers.find_endpoint = lambda broker_id: endpoint
            started = asyncio.get_running_loop().time()
            for _ in range(6):
                assert "no connection" in (await Asked(peers).send()).reason
            # 20 + 40 + 80 + 100 + 100 ms of backoff between them
            assert asyncio.get_running_loop().time() - started >= 0.3
        asked = Asked(peers)
        waiting = asked.send()
        peers.close()
        assert "stopping" in (await waiting).reason
        assert "stopping" in (await Asked(peers).send()).reason

    run(test)


class Torn:
    """An event loop whose first connection is given up in the turn in which it is made, as uvloop does it:
    the transport is closed, and its protocol is never told that it is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, made_first: bool) -> None:
        self._loop = loop
        self._made_first = made_first
        self.attempts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Callable[[], Any], *address: Any, **options: Any) -> Any:
        self.attempts += 1
        if self.attempts > 1:
            return await self._loop.create_connection(factory, *address, **options)
        protocol, transport = factory(), Dead()
        if self._made_first:
            protocol.connection_made(transport)
        else:
            self._loop.call_soon(protocol.connection_made, transport)
        raise TimeoutError


class Dead:
    """A transport that takes everything and sends nothing."""

    def get_extra_info(self, name: str) -> None: ...
    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


@pytest.mark.parametrize("made_first", [True, False])
def test_a_connection_given_up_in_the_turn_that_makes_it_is_not_used(made_first: bool) -> None:
    async def test() -> None:
        peers, server = await listening(echo)
        peers.loop = torn = Torn(peers.loop, made_first=made_first)  # type: ignore[assignment]
        asked = Asked(peers)
        first = await asyncio.wait_for(asked.send(b"one", timeout_ms=60_000), 5)
        assert isinstance(first, PeerFault)
        assert "timed out" in first.reason
        assert await asyncio.wait_for(asked.send(b"two", timeout_ms=60_000), 5) == b"two"
        assert torn.attempts == 2
        peers.close()
        server.close()

    run(test)


def test_forgetting_a_broker_ends_what_waits_and_a_moved_one_is_found_again() -> None:
    async def test() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        peers, server = await listening(silent)
        asked = Asked(peers)
        waiting = asked.send()
        await asyncio.sleep(0)
        peers.forget(7)
        assert "left" in (await waiting).reason
        waiting = asked.send()
        other = await asyncio.start_server(echo, "127.0.0.1", 0)
        moved = Endpoint("127.0.0.1", other.sockets[0].getsockname()[1])
        peers.find_endpoint = lambda broker_id: moved
        assert await asked.send(b"there") == b"there"
        assert "moved" in (await waiting).reason
        peers.close()
        for listener in (server, other):
            listener.close()

    run(test)


def test_more_requests_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "WAITING_MAX", 2)

    async def test() -> None:
        peers, server = await listening(echo)
        asked = Asked(peers)
        outcomes = await asyncio.gather(*[asked.send(b"%d" % number) for number in range(3)])
        assert outcomes[:2] == [b"0", b"1"]
        assert "too many" in outcomes[2].reason
        peers.close()
        server.close()

    run(test)

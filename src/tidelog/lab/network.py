"""Gates between clients and brokers, and between brokers: they pass bytes on, hold, delay or lose them.

A broker of the lab advertises the port of its gate, so clients and the other brokers come through it. A gate
knows who is at the other end by the client id of the first request (brokers are `broker-<id>`), so a broker
can be cut off as a whole: nothing reaches it, and nothing it sends reaches another broker. A cut is silent,
as that of a network is: connections stay open and nothing comes. What was on its way in a cut is lost: when
it heals, connections that it held up end. No rights are needed; nothing outside these connections is touched.
The metadata store is not behind a gate.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 1 << 18
PRODUCE = 0
CALL_SECONDS_MAX = 5.0
_REQUEST_HEAD = struct.Struct(">ihhih")
_BROKER_PREFIX = "broker-"


def client_id_of(data: bytes) -> str:
    """The client id in the first request of a connection; empty where there is none."""
    if len(data) < _REQUEST_HEAD.size:
        return ""
    *_, length = _REQUEST_HEAD.unpack_from(data)
    return data[_REQUEST_HEAD.size : _REQUEST_HEAD.size + max(0, length)].decode(errors="replace")


def api_key_of(data: bytes) -> int:
    """The API of the request that these bytes begin with; -1 where they are too few."""
    return int(_REQUEST_HEAD.unpack_from(data)[1]) if len(data) >= _REQUEST_HEAD.size else -1


@dataclass(slots=True)
class _Passage:
    """One connection through a gate."""

    source: str = ""
    lose_answer: bool = False
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def from_broker(self) -> bool:
        return self.source.startswith(_BROKER_PREFIX)


class _Gate:
    """The door of one broker; lives on the loop of its `Network`."""

    def __init__(self, network: "Network", broker_id: int, upstream_port: int) -> None:
        self.network = network
        self.broker_id = broker_id
        self.upstream_port = upstream_port
        self.delay_seconds = 0.0
        self.answers_to_lose = 0
        self.lost = threading.Event()
        self._passing: set[asyncio.Task[None]] = set()

    def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until either side ends it.

        In a task of its own: the stream's callback would tell one that is cancelled, perhaps before it has
        begun, as a defect.
        """
        task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = _Passage(writers=[writer])
        try:
            first = await reader.read(READ_BYTES)
            if not first:
                return
            passage.source = client_id_of(first)
            await self._passable(passage)
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            passage.writers.append(upstream_writer)
            there = asyncio.create_task(self._requests(first, reader, upstream_writer, passage))
            back = asyncio.create_task(self._answers(upstream_reader, writer, passage))
            _, under_way = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in under_way:
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # The broker is down, or a side hung up: the other one sees its connection end. Or the network
            # is closed.
            return
        finally:
            for stream in passage.writers:
                stream.close()

    async def _requests(
        self,
        data: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passage: _Passage,
    ) -> None:
        while data:
            await self._passable(passage)
            if self.answers_to_lose and not passage.from_broker and api_key_of(data) == PRODUCE:
                self.answers_to_lose -= 1
                passage.lose_answer = True
            writer.write(data)
            await writer.drain()
            data = await reader.read(READ_BYTES)

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: _Passage
    ) -> None:
        while data := await reader.read(READ_BYTES):
            await self._passable(passage)
            if passage.lose_answer:
                self.lost.set()
                return  # the connection ends here, and its answer with it
            writer.write(data)
            await writer.drain()

    async def _passable(self, passage: _Passage) -> None:
        """Wait while there is a cut, which ends the connection; then as long as this gate is slow."""
        sides = {f"{_BROKER_PREFIX}{self.broker_id}", passage.source}
        if sides & self.network.cut_sides:
            async with self.network.changed:
                await self.network.changed.wait_for(lambda: not sides & self.network.cut_sides)
            raise ConnectionResetError("what was on its way through a cut is lost")
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)


def _run(made: Future[asyncio.AbstractEventLoop]) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    made.set_result(loop)
    loop.run_forever()


class Network:
    """The gates of a cluster, on a loop in a thread of their own."""

    def __init__(self) -> None:
        # The loop is made in its thread too: Ctrl-C interrupts the main one, and half a loop complains.
        made: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_run, args=(made,), name="lab-network", daemon=True)
        self._thread.start()
        self._loop = made.result(CALL_SECONDS_MAX)
        self._gates: dict[int, _Gate] = {}
        self._servers: list[asyncio.Server] = []
        self.cut_sides: set[str] = set()
        self.changed = self._call(self._make_condition())

    def __repr__(self) -> str:
        return f"<Network gates={sorted(self._gates)} cut={sorted(self.cut_sides)}>"

    @property
    def cut_brokers(self) -> frozenset[int]:
        return frozenset(int(side.removeprefix(_BROKER_PREFIX)) for side in self.cut_sides)

    @property
    def slow_brokers(self) -> dict[int, float]:
        """Delay in milliseconds of every gate that has one."""
        return {
            number: gate.delay_seconds * 1000 for number, gate in self._gates.items() if gate.delay_seconds
        }

    def open_gate(self, broker_id: int, port: int, upstream_port: int) -> None:
        """Listen for a broker on `port` and pass what comes to `upstream_port`."""
        gate = _Gate(self, broker_id, upstream_port)
        listening = socket.create_server(("127.0.0.1", port))
        self._servers.append(self._call(asyncio.start_server(gate.admit, sock=listening)))
        self._gates[broker_id] = gate

    def cut(self, broker_id: int) -> None:
        """Nothing passes to this broker or from it any more."""
        self._call(self._change(lambda: self.cut_sides.add(f"{_BROKER_PREFIX}{broker_id}")))

    def heal(self, broker_id: int | None = None) -> None:
        """End the cut of a broker, or every cut."""
        gone = set(self.cut_sides) if broker_id is None else {f"{_BROKER_PREFIX}{broker_id}"}
        self._call(self._change(lambda: self.cut_sides.difference_update(gone)))

    def slow(self, broker_id: int, delay_ms: float) -> None:
        """Hold everything that passes this broker's gate for so long; 0 ends it."""
        self._gates[broker_id].delay_seconds = delay_ms / 1000

    def lose_answers(self, broker_id: int, count: int = 1) -> threading.Event:
        """Lose the broker's next answers to clients' Produce requests, with their connections.

        The event that comes back is set when the first one was lost.
        """
        gate = self._gates[broker_id]
        gate.lost.clear()
        gate.answers_to_lose = count
        return gate.lost

    def close(self) -> None:
        """End every connection, and the thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS_MAX)

    async def _make_condition(self) -> asyncio.Condition:
        return asyncio.Condition()

    async def _change(self, change: Callable[[], None]) -> None:
        async with self.changed:
            change()
            self.changed.notify_all()

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Machines in one thread: real brokers on simulated disks, with clocks that drift and a network that fails.

Everything is an event at a moment of simulated time, held by `Events`; all delays come from one seed. A
`Machine` is a place for a broker: its processes come and go, its disk stays. It is also its broker's
background and port to the others. What can go wrong with it, each until it is taken back:

- *frozen*: nothing of it runs (SIGSTOP); what arrives waits. *hung*: its loop stands, its threads go on,
  those too that keep its session alive, and the one that looks whether the loop moves.
- *slow*: the work of its threads (the disk, the store) takes its time.
- *ended*: the process is gone; what it had sent may still arrive.

A `Wire` is a connection with an order of its own, so different channels overtake each other. A direction that
is cut holds what is sent (TCP sends it again) until it is healed or the connection is given up; of a
connection that is given up, requests that were on their way may still arrive.
"""

import functools
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

from tests.support.frames import each_frame, serve_frames
from tests.support.in_memory_cluster import joined
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tidelog.broker.broker import Broker
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.broker.runtime.peers import PeerFault
from tidelog.client.requests import flexible_answer, frame_prefix, response_body
from tidelog.coordination.store import StoreError
from tidelog.model.errors import Refused
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings

START_MS = 1_700_000_000_000

Call = Callable[[], None]
#: hears of an answer when it is written
Observe = Callable[[bytes], None]


class Events:
    """What happens next, for machines and for others (None)."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.count = 0
        self._heap: list[tuple[int, int, Machine | None, bool, Call]] = []
        self._serial = count()

    def at(self, time_ms: int, machine: "Machine | None", call: Call, *, thread: bool = False) -> None:
        """Call at a moment; for a machine only while it runs. `thread`: also while its loop hangs."""
        heapq.heappush(self._heap, (time_ms, next(self._serial), machine, thread, call))

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> "Machine | None":
        """Run the next event; the machine it happened to, if it did."""
        _, _, machine, thread, call = heapq.heappop(self._heap)
        if machine is None:
            call()
        elif machine.ended:
            return None
        elif machine.frozen or (machine.hung and not thread):
            machine.held.append((call, thread))
            return None
        else:
            call()
        return machine


class DriftingClock:
    """A machine's clock: a little fast or slow, and its wall clock is wrong by a constant that may jump."""

    def __init__(self, events: Events, rate: float, wrong_by_ms: int) -> None:
        self._events = events
        self.rate = rate
        self.wrong_by_ms = wrong_by_ms

    def monotonic_ms(self) -> int:
        return 1_000_000 + int((self._events.now_ms - START_MS) * self.rate)

    def now_ms(self) -> int:
        return START_MS + int((self._events.now_ms - START_MS) * self.rate) + self.wrong_by_ms


class Network:
    """Delays, cuts and the connections there are."""

    def __init__(self, events: Events, random: Random) -> None:
        self.events = events
        self.random = random
        self.cuts: set[tuple[int, int]] = set()
        self.slow: set[tuple[int, int]] = set()
        self.wires: dict[Wire, None] = {}

    def delay_ms(self, sender: int, receiver: int) -> int:
        if (sender, receiver) in self.slow:
            return self.random.randint(20, 250)
        return self.random.choice((0, 1, 1, 2, 4))

    def heal(self, pairs: set[tuple[int, int]]) -> None:
        """Take back cuts: what waited goes on its way."""
        self.cuts -= pairs
        for wire in list(self.wires):
            for pipe in (wire.requests, wire.answers):
                if (pipe.sender, pipe.receiver) in pairs:
                    pipe.pump_soon()

    def reset(self, one: int, other: int) -> None:
        """Break the connections between two sides."""
        for wire in list(self.wires):
            if {wire.source_id, wire.target.node_id} == {one, other}:
                wire.close()


class Pipe:
    """One direction of a connection: what is sent arrives in order, or not at all from some point on."""

    __slots__ = ("_deliver", "_last_ms", "_network", "_queue", "machine", "receiver", "sender")

    def __init__(
        self,
        network: Network,
        sender: int,
        receiver: int,
        machine: "Machine | None",
        deliver: Callable[[Any], None],
    ) -> None:
        self._network = network
        self.sender = sender
        self.receiver = receiver
        self.machine = machine
        self._deliver = deliver
        self._queue: deque[tuple[int, Any]] = deque()
        self._last_ms = 0

    def send(self, message: Any) -> None:
        network = self._network
        delay_ms = network.delay_ms(self.sender, self.receiver)
        self._last_ms = max(self._last_ms, network.events.now_ms + delay_ms)
        self._queue.append((self._last_ms, message))
        network.events.at(self._last_ms, self.machine, self.pump)

    def pump(self) -> None:
        network = self._network
        while self._queue and self._queue[0][0] <= network.events.now_ms:
            if (self.sender, self.receiver) in network.cuts:
                return
            self._deliver(self._queue.popleft()[1])

    def pump_soon(self) -> None:
        if self._queue:
            self._network.events.at(
                max(self._queue[-1][0], self._network.events.now_ms), self.machine, self.pump
            )

    def clear(self) -> None:
        self._queue.clear()


class Wire:
    """A connection from a machine or a client to a broker."""

    def __init__(self, network: Network, source_id: int, source: "Machine | None", target: "Machine") -> None:
        self.network = network
        self.source_id = source_id
        self.source = source
        self.target = target
        self.closed = False
        self.requests = Pipe(network, source_id, target.node_id, target, self._arrive)
        self.answers = Pipe(network, target.node_id, source_id, source, self._answered)
        self._context = ConnectionContext(f"host{source_id}", 1, "PLAINTEXT")
        self._pending: deque[tuple[Any, int, Any]] = deque()
        self._outstanding: dict[int, Callable[[bytes | PeerFault], None]] = {}
        self._serial = count()
        network.wires[self] = None

    def request(
        self,
        frame: bytes,
        then: Callable[[bytes | PeerFault], None],
        timeout_ms: int,
        observe: Callable[[bytes], None] | None = None,
    ) -> None:
        """Send a frame; `then` once with the answer or the fault, `observe` when the answer is written."""
        self.request_together([(frame, then, observe)], timeout_ms)

    def request_together(
        self,
        requests: Sequence[tuple[bytes, Callable[[bytes | PeerFault], None], Observe | None]],
        timeout_ms: int,
    ) -> None:
        """Send frames that arrive together."""
        message: list[tuple[bytes, int, Observe | None]] = []
        for frame, then, observe in requests:
            serial = next(self._serial)
            self._outstanding[serial] = then
            message.append((frame, serial, observe))
        self.requests.send(message)
        events = self.network.events
        for _, serial, _ in message:
            events.at(events.now_ms + timeout_ms, self.source, lambda serial=serial: self._time_out(serial))  # type: ignore[misc]

    def _time_out(self, serial: int) -> None:
        if serial in self._outstanding:
            self.close("timed out")

    def close(self, reason: str = "connection lost", *, abruptly: bool = False) -> None:
        """Give the connection up; what waits on it ends with a fault."""
        if self.closed:
            return
        self.closed = True
        outstanding, self._outstanding = self._outstanding, {}
        events = self.network.events
        if abruptly or self.network.random.random() < 0.5:
            self.requests.clear()
        self.requests.send(None)
        for then in outstanding.values():
            events.at(events.now_ms, self.source, lambda then=then: then(PeerFault(reason)))  # type: ignore[misc]

    def _arrive(self, message: list[tuple[bytes, int, Observe | None]] | None) -> None:
        if message is None:
            self.hang_up()
            return
        target = self.target
        target.broker.liveness.check(target.clock.monotonic_ms() * 1_000_000)
        try:
            with target.broker.turn:
                answers = serve_frames(target.dispatcher, self._context, *(frame for frame, _, _ in message))
        except CloseConnection:
            self.close()
            return
        places = iter(message)
        for answer in answers:
            # Like requests that were served together have one answer together.
            for each in each_frame(answer) if isinstance(answer, bytes) else (answer,):
                _, serial, observe = next(places)
                if isinstance(each, PendingAnswer) and each.chunks is None:
                    each.on_filled = self._flush
                if each is not None:
                    self._pending.append((each, serial, observe))
        self._flush()

    def _flush(self) -> None:
        while self._pending:
            answer, serial, observe = self._pending[0]
            if isinstance(answer, PendingAnswer):
                if answer.chunks is None:
                    return
                answer = answer.chunks
            self._pending.popleft()
            liveness, now_ns = self.target.broker.liveness, self.target.clock.monotonic_ms() * 1_000_000
            if now_ns > liveness.lease_end_ns:
                # As a connection does: what was worked out before it stood still is not told.
                liveness.overdue()
                self.close(abruptly=True)
                return
            data = joined(answer)
            if observe is not None:
                observe(data)
            if not self.closed:
                self.answers.send((data, serial))

    def _answered(self, message: tuple[bytes, int]) -> None:
        then = self._outstanding.pop(message[1], None)
        if then is not None and not self.closed:
            then(message[0])

    def hang_up(self) -> None:
        """The broker's side learns that the connection is gone."""
        self.network.wires.pop(self, None)
        for answer, _, _ in self._pending:
            if isinstance(answer, PendingAnswer):
                answer.delayed.abandon()
        self._pending.clear()


class Machine:
    """A place for one broker: a process (this object is one life of it), and a disk that outlives it."""

    def __init__(
        self,
        cluster: "Cluster",
        node_id: int,
        disk: SimulatedDisk,
        clock: DriftingClock,
        *,
        life: int = 1,
    ) -> None:
        self.cluster = cluster
        self.events = cluster.events
        self.node_id = node_id
        self.disk = disk
        self.clock = clock
        self.life = life
        self.ended = False
        self.frozen = False
        self.hung = False
        #: when it was frozen or began to hang
        self.stopped_ms = 0
        self.slow = False
        self.store_cut = False
        #: when the next timer is due
        self.timer_ms: int | None = None
        self.held: list[tuple[Call, bool]] = []
        self.registered: list[Refused | None] = []
        self.log_dirs = ["/data"]
        self.lost_directories: list[str] = []
        #: why the broker cannot go on, if it said so
        self.fatal: list[str] = []
        self.wires: dict[tuple[int, str], Wire] = {}
        self.store: SimulatedStore | None = None
        self.broker: Broker
        self.dispatcher: Dispatcher

    def start(self) -> None:
        """Open the broker and register it; raises StoreError when the store cannot be reached."""
        settings = {
            "log.dirs": ",".join(self.log_dirs),
            "tidelog.lost.directories": ",".join(self.lost_directories),
            "broker.id": str(self.node_id),
            **self.cluster.settings,
        }
        self.broker = Broker(
            BrokerSettings.resolve(settings),
            clock=self.clock,
            random=Random(self.cluster.random.getrandbits(64)),
            background=self,
            disk=self.disk,
            endpoints={"PLAINTEXT": Endpoint(f"host{self.node_id}", 9092)},
            open_store=self._open_store,
            peers=self,
            on_fatal=self.fatal.append,
            raise_unexpected=True,
        )
        self.dispatcher = self.broker.make_dispatcher()
        self.broker.liveness.start()
        self._watch_the_loop()
        self.broker.register(self.registered.append)
        self.look_at_timers()

    def _watch_the_loop(self) -> None:
        """What the thread beside the loop does; it goes on while the loop hangs."""
        self.broker.liveness.look()
        due_ms = self.events.now_ms + self.broker.liveness.tick_ms
        self.events.at(due_ms, self, self._watch_the_loop, thread=True)

    def _open_store(self) -> SimulatedStore:
        if self.store_cut:
            raise StoreError("the store cannot be reached")
        self.store = self.cluster.store.open(f"broker {self.node_id}", schedule=self.call_soon)
        return self.store

    @property
    def running(self) -> bool:
        return not (self.ended or self.frozen or self.hung)

    @property
    def open(self) -> bool:
        """Whether the broker came so far as to serve."""
        return not self.ended and hasattr(self, "dispatcher")

    def look_at_timers(self) -> None:
        """Note when the next timer of the broker is due, by the time of the world."""
        delay_ms = self.broker.timers.delay_ms() if self.open else None
        if delay_ms is None:
            self.timer_ms = None
        elif delay_ms == 0:
            self.timer_ms = self.events.now_ms
        else:
            self.timer_ms = self.events.now_ms + max(1, int(delay_ms / self.clock.rate))

    def thaw(self) -> None:
        """Run again: what waited happens now, in order."""
        self.frozen = self.hung = False
        held, self.held = self.held, []
        for call, thread in held:
            self.events.at(self.events.now_ms, self, call, thread=thread)

    def end(self, *, quietly: bool = False) -> None:
        """The process is gone; `quietly` as with the power: nobody is told, nothing of it arrives."""
        self.ended = True
        network = self.cluster.network
        for wire in list(network.wires):
            if wire.source is self:
                wire.close(abruptly=quietly)
            elif wire.target is self and not quietly:
                network.wires.pop(wire, None)
                wire.close(abruptly=True)

    def refuse_old_wires(self) -> None:
        """The machine runs again: what is sent over connections of its last life is refused."""
        network = self.cluster.network
        for wire in list(network.wires):
            if wire.target is self:
                del network.wires[wire]
                delay_ms = network.random.randint(0, 200)
                self.events.at(
                    self.events.now_ms + delay_ms, None, functools.partial(wire.close, abruptly=True)
                )

    # -- the background port

    def call_soon(self, callback: Call) -> None:
        self.events.at(self.events.now_ms + self.cluster.random.randint(0, 1), self, callback)

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def carry_out() -> None:
            try:
                outcome = work()
            except (OSError, ValueError) as error:
                outcome = error
            self.events.at(self.events.now_ms + self._work_ms(), self, lambda: then(outcome))

        self.events.at(self.events.now_ms + self._work_ms(), self, carry_out, thread=True)

    def _work_ms(self) -> int:
        random = self.cluster.random
        return random.randint(5, 120) if self.slow else random.choice((0, 0, 1, 1, 3))

    # -- the peers port

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: bytes | list[bytes],
        then: Callable[[memoryview | PeerFault], None],
        *,
        timeout_ms: int,
        channel: str = "control",
    ) -> None:
        target = self.cluster.machines.get(broker_id)
        if target is None or (target.ended and (self.node_id, broker_id) not in self.cluster.network.cuts):
            self.call_soon(lambda: then(PeerFault("not reachable")))
            return
        wire = self.wires.get((broker_id, channel))
        if wire is None or wire.closed or wire.target is not target:
            if wire is not None:
                wire.close()
            wire = Wire(self.cluster.network, self.node_id, self, target)
            self.wires[broker_id, channel] = wire
        data = body if isinstance(body, bytes) else b"".join(body)
        client_id = f"broker-{self.node_id}".encode()
        frame = frame_prefix(api_key, version, 1, client_id, len(data))[4:] + data
        flexible = flexible_answer(api_key, version)

        def answered(answer: bytes | PeerFault) -> None:
            if isinstance(answer, PeerFault):
                then(answer)
            else:
                then(response_body(memoryview(answer)[4:], flexible))

        wire.request(frame, answered, timeout_ms)

    def forget(self, broker_id: int) -> None:
        for target_id, channel in list(self.wires):
            if target_id == broker_id:
                self.wires.pop((target_id, channel)).close()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "frozen" if self.frozen else "hung" if self.hung else "running"
        return f"<Machine {self.node_id} life={self.life} {state}>"


class Cluster:
    """The machines, the network between them, and the store they share."""

    def __init__(self, seed: int, node_ids: tuple[int, ...], settings: dict[str, str]) -> None:
        self.random = Random(seed)
        self.events = Events()
        self.network = Network(self.events, self.random)
        self.settings = settings
        self.store = self.make_store()
        self.machines: dict[int, Machine] = {}
        for node_id in node_ids:
            clock = DriftingClock(
                self.events, self.random.uniform(0.97, 1.03), self.random.randint(-60_000, 60_000)
            )
            disk = SimulatedDisk(self.random.getrandbits(32))
            self.machines[node_id] = Machine(self, node_id, disk, clock)
        for machine in self.machines.values():
            self.furnish(machine)
            machine.start()

    def furnish(self, machine: Machine) -> None:
        """Give a machine what it needs before its first start."""

    def make_store(self) -> SimulatedCluster:
        return SimulatedCluster(random=self.random)

    @property
    def now_ms(self) -> int:
        return self.events.now_ms

    @property
    def running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.running]

    def step(self, until_ms: int) -> bool:
        """Run the next event or timer that is due by `until_ms`; False if there is none."""
        events = self.events
        event_ms = events.next_ms
        timer_machine: Machine | None = None
        for machine in self.machines.values():
            due_ms = machine.timer_ms
            if due_ms is not None and (event_ms is None or due_ms < event_ms) and machine.running:
                event_ms, timer_machine = due_ms, machine
        if event_ms is None or event_ms > until_ms:
            return False
        events.count += 1
        events.now_ms = max(events.now_ms, event_ms)
        if timer_machine is not None:
            broker = timer_machine.broker
            with broker.turn:
                broker.timers.run_due()
            happened_to: Machine | None = timer_machine
        else:
            happened_to = events.run_next()
        # What happens outside of the machines may set the timers of any.
        for machine in self.machines.values() if happened_to is None else (happened_to,):
            machine.look_at_timers()
        self.happened(happened_to)
        return True

    def happened(self, machine: Machine | None) -> None:
        """Something was done on a machine, or elsewhere."""

    def run_for(self, milliseconds: int) -> None:
        until_ms = self.now_ms + milliseconds
        while self.step(until_ms):
            pass
        self.events.now_ms = until_ms

    def run_until(self, condition: Callable[[], Any], timeout_ms: int) -> bool:
        """Run until something is true; whether it became true in time."""
        until_ms = self.now_ms + timeout_ms
        while not condition():
            if not self.step(until_ms):
                self.events.now_ms = until_ms
                return bool(condition())
        return True

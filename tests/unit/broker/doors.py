"""Several brokers' metadata in one thread: one simulated store, simulated peers, a clock moved by hand.

Work and callbacks wait in one queue and are taken in order, or in an order drawn from a seed.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tests.unit.broker.node import ManualClock
from tidelog.broker.metadata.metadata import LifecycleCallbacks, Metadata, Registration
from tidelog.broker.requests.handlers import controller_command
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Command, CreateTopics, Result, TopicSpec
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.apis import CONTROLLER_COMMAND

TURNS_MAX = 100_000


class DoorUnderTest:
    """One broker's metadata; it can be frozen (SIGSTOP), thawed, and killed."""

    def __init__(self, world: "World", broker_id: int, **settings: str) -> None:
        self.world = world
        self.broker_id = broker_id
        self.settings = BrokerSettings.resolve({"broker.id": str(broker_id), **settings})
        self.timers = Timers(world.clock)
        self.store: SimulatedStore
        self.frozen = False
        self.dead = False
        #: how many turns of the loop the outcome of work takes to arrive
        self.answer_turns = 0
        #: what waits while frozen
        self.held: deque[Callable[[], None]] = deque()
        self.started: list[Refused | None] = []
        self.images: list[int] = []
        self.metadata = Metadata(
            self.open_store,
            self.settings,
            self,
            Random(world.random.getrandbits(64)),
            self.timers,
            self,
            broker_id,
            Events(world.clock, broker_id),
            LifecycleCallbacks(),
        )

    def open_store(self) -> SimulatedStore:
        self.store = self.world.cluster.open(f"broker {self.broker_id}", schedule=self.call_soon)
        if self.world.stores_down:
            self.store.close()
            self.store = self.world.cluster.open(f"broker {self.broker_id}")
            self.store.partition()
            self.store.get("anything")  # raises
        return self.store

    def start(self) -> "DoorUnderTest":
        self.metadata.load()
        self.metadata.listen(lambda old, new, records: self.images.append(self.metadata.sequence))
        registration = Registration({"PLAINTEXT": Endpoint("host", 9000 + self.broker_id)}, None, ("disk",))
        self.metadata.start(lambda: registration, self.started.append)
        return self

    # -- the background port

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def step() -> None:
            try:
                outcome = work()
            except (OSError, ValueError) as error:
                outcome = error
            deliver(outcome, self.world.random.randrange(6) if self.world.shuffled else self.answer_turns)

        def deliver(outcome: Any, turns: int) -> None:
            # Much may happen between the end of the work and the loop hearing of it: a watch may be faster.
            self.call_soon(lambda: deliver(outcome, turns - 1) if turns else then(outcome))

        self.call_soon(step)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.world.queue.append((self, callback))

    # -- the peers port

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: Any,
        then: Any,
        *,
        timeout_ms: int,
        channel: str = "c",
    ) -> None:
        assert api_key == CONTROLLER_COMMAND and version == 0
        peer = self.world.doors.get(broker_id)
        if peer is None or peer.dead or self.world.links_down:
            self.call_soon(lambda: then(PeerFault("lost")))
            return

        def serve() -> None:
            handler = controller_command.Handler(peer.metadata, LiveSettings(peer.settings))
            parked = handler.handle("PLAINTEXT", memoryview(body))
            parked.deliver_to(lambda answer: self.call_soon(lambda: then(memoryview(answer))))

        peer.call_soon(serve)

    def forget(self, broker_id: int) -> None:
        """Nothing to close."""

    # -- faults

    def kill(self) -> None:
        self.dead = True
        self.store.expire()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        self.world.queue.extend((self, callback) for callback in self.held)
        self.held.clear()

    # -- asking

    def submit(self, command: Command, timeout_ms: int = 30_000) -> list[tuple[Result, ...]]:
        answers: list[tuple[Result, ...]] = []
        self.metadata.submit(command, answers.append, timeout_ms)
        return answers

    def create(self, name: str, partitions: int = 1, timeout_ms: int = 30_000) -> list[tuple[Result, ...]]:
        return self.submit(CreateTopics((TopicSpec(name, partitions, 1),)), timeout_ms)


class World:
    """The store, the clock, the queue and the doors."""

    def __init__(self, seed: int = 1, *, shuffled: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.shuffled = shuffled
        self.clock = ManualClock()
        self.queue: deque[tuple[DoorUnderTest, Callable[[], None]]] = deque()
        self.cluster = SimulatedCluster(random=self.random)
        self.doors: dict[int, DoorUnderTest] = {}
        self.stores_down = False
        self.links_down = False

    def door(self, broker_id: int, **settings: str) -> DoorUnderTest:
        door = self.doors[broker_id] = DoorUnderTest(self, broker_id, **settings)
        return door.start()

    def three(self) -> tuple[DoorUnderTest, DoorUnderTest, DoorUnderTest]:
        doors = self.door(1), self.door(2), self.door(3)
        self.settle()
        return doors

    def step(self) -> None:
        position = 0
        if self.shuffled:
            # Any door may be next; what one door has to do stays in order.
            door = self.random.choice(self.queue)[0]
            position = next(i for i, (other, _) in enumerate(self.queue) if other is door)
        door, callback = self.queue[position]
        del self.queue[position]
        if door.frozen:
            door.held.append(callback)
        elif not door.dead:
            callback()

    def settle(self) -> None:
        for _ in range(TURNS_MAX):
            if not self.queue:
                return
            self.step()
        raise AssertionError("the doors do not come to rest")

    def advance(self, milliseconds: int, step_ms: int = 50) -> None:
        """Let time pass in small steps, with everything that becomes due."""
        until_ms = self.clock.time_ms + milliseconds
        self.settle()
        while self.clock.time_ms < until_ms:
            self.clock.time_ms = min(until_ms, self.clock.time_ms + step_ms)
            for door in self.doors.values():
                if not door.frozen and not door.dead:
                    door.timers.run_due()
            self.settle()

    @property
    def controller(self) -> DoorUnderTest:
        [door] = [door for door in self.doors.values() if door.metadata.is_controller and not door.dead]
        return door


def codes(results: tuple[Result, ...]) -> list[ErrorCode]:
    return [result.code if isinstance(result, Refused) else ErrorCode.NONE for result in results]

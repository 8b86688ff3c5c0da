"""A lab for the scenarios of `tidelog.lab` in the simulation: the same steps, one thread, no waiting.

The brokers are the real ones on simulated disks, wires and clocks (`cluster_machines`); the clients speak the
real protocol. Time passes only in `wait` and in requests, so a scenario takes a fraction of a second, and a
seed decides every delay. It has what the scenarios about clusters use: topics, producing, reading, positions,
copies, and the faults kill, start, pause, resume, cut, heal and expire_session.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.simulation.cluster_machines import Cluster, Machine, Wire
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.peers import PeerFault
from tidelog.client import produce_requests
from tidelog.client.requests import (
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.lab.clients import Delivery, ReadRecord
from tidelog.lab.events import EventStream
from tidelog.lab.lab import Lab, Positions, Replica
from tidelog.lab.scenario import Scenario, Topic
from tidelog.model.errors import ErrorCode
from tidelog.protocol import fetch_client
from tidelog.protocol.apis import FETCH, PRODUCE
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records
from tidelog.server.cluster_view import ClusterView, NoView, PartitionView
from tidelog.server.local_cluster import REPLICAS_MAX, replication_settings

CLIENT = -1
CLIENT_ID = b"lab"
CREATE_TOPICS, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS = 19, 43, 44
PRODUCE_VERSION, FETCH_VERSION = 8, 11
ANSWER_MS = 1_000
WAIT_SECONDS = 60.0
SESSION_MS = 700
STEP_MS = 10
RETRY_MS = 50
FETCH_BYTES = 1 << 20

SETTINGS = {
    "replica.lag.time.max.ms": "30000",
    "replica.fetch.wait.max.ms": "250",
    "replica.socket.timeout.ms": "400",
    "replica.fetch.backoff.ms": "100",
    "broker.session.timeout.ms": str(SESSION_MS),
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
}


class SimulatedLab(Lab):
    """A `Lab` whose cluster, clients and time are simulated, as far as scenarios of clusters use them."""

    def __init__(self, scenario: Scenario, events: EventStream, seed: int) -> None:
        self.scenario = scenario
        self.events = events
        self.seed = seed
        self.notes: dict[str, Any] = {}
        self.topics: list[str] = []
        self.consumers: dict[str, Any] = {}
        self.faults = SimulatedFaults(self)  # type: ignore[assignment]
        self.cluster = SimulatedView(self)  # type: ignore[assignment]
        self.paused: set[int] = set()
        self.wires: dict[int, Wire] = {}
        self.world: Cluster

    def __repr__(self) -> str:
        return f"<SimulatedLab {self.scenario.name} seed={self.seed}>"

    def start(self) -> "SimulatedLab":
        numbers = tuple(range(1, self.scenario.brokers + 1))
        settings = {**SETTINGS, **replication_settings(len(numbers)), **self.scenario.settings}
        self.world = Cluster(self.seed, numbers, settings)
        machines = self.world.machines
        self.wait("all brokers are registered", lambda: all(m.registered for m in machines.values()))
        self.wait("all brokers are known", lambda: len(self.cluster.view().addresses) == len(numbers))
        for topic in self.scenario.topics:
            self.create_topic(topic)
        return self

    def close(self) -> None:
        for machine in self.world.machines.values():
            machine.end(quietly=True)

    # The cluster

    def machine(self, broker_id: int) -> Machine:
        return self.world.machines[broker_id]

    def log(self, broker_id: int, topic: str, partition: int) -> Partition:
        broker = self.machine(broker_id).broker
        found = broker.replicas.led.get((topic, partition)) or broker.replicas.followed.get(
            (topic, partition)
        )
        if found is None:
            raise LookupError(f"broker {broker_id} has no {topic}-{partition}")
        return found

    def create_topic(
        self,
        topic: Topic | str,
        partitions: int = 1,
        replication_factor: int | None = None,
        **configs: Any,
    ) -> str:
        if isinstance(topic, str):
            topic = Topic(topic, partitions, replication_factor, configs)
        replicas = topic.replication_factor or min(self.scenario.brokers, REPLICAS_MAX)
        row = {
            "name": topic.name,
            "num_partitions": topic.partitions,
            "replication_factor": replicas,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
        }
        fields = {"topics": [row], "timeout_ms": 5_000, "validate_only": False}
        self.ask_until(CREATE_TOPICS, 5, fields, lambda answer: answer.topics[0].error_code)
        self.cluster.wait_in_sync([topic.name])
        self.topics.append(topic.name)
        return topic.name

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        fields = {"resources": [resource], "validate_only": False}
        self.ask_until(INCREMENTAL_ALTER_CONFIGS, 1, fields, lambda answer: answer.responses[0].error_code)

    def elect_preferred_leader(self, topic: str, partition: int = 0) -> None:
        first = self.partition(topic, partition).replicas[0]
        fields = {
            "election_type": 0,
            "topic_partitions": [{"topic": topic, "partitions": [partition]}],
            "timeout_ms": 5_000,
        }
        self.ask_until(ELECT_LEADERS, 2, fields, lambda answer: answer.error_code)
        self.wait(f"broker {first} leads", lambda: self.leader(topic, partition) == first)

    def positions(self, topic: str, partition: int = 0) -> Positions:
        found = self.log(self.wait_leader(topic, partition), topic, partition)
        return Positions(found.log.log_start_offset, found.high_watermark, found.last_stable_offset)

    def replicas_of(self, found: PartitionView) -> list[Replica]:
        return [
            Replica(
                broker,
                found.partition,
                self.log(broker, found.topic, found.partition).log.log_end_offset,
                broker == found.leader,
                broker in found.isr,
                self.machine(broker).running,
            )
            for broker in found.replicas
        ]

    def log_bytes(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        return b"".join(bytes(data) for _, data in self.log(broker_id, topic, partition).read_batches(0))

    def headers(self, broker_id: int, topic: str, partition: int = 0) -> list[BatchHeader]:
        return [header for header, _ in self.log(broker_id, topic, partition).read_batches(0)]

    # Clients

    def sender(self, **options: Any) -> "SimulatedSender":  # type: ignore[override]
        return SimulatedSender(self, **options)

    def read(self, topic: str, *, partitions: Sequence[int] | None = None) -> list[ReadRecord]:  # type: ignore[override]
        chosen = partitions or sorted(p.partition for p in self.cluster.view().partitions if p.topic == topic)
        return [record for number in chosen for record in self._read_partition(topic, number)]

    def _read_partition(self, topic: str, partition: int) -> list[ReadRecord]:
        """From the beginning to the high watermark that the first answer names."""
        found: list[ReadRecord] = []
        offset, end = 0, -1
        while end < 0 or offset < end:
            answered = self._fetch(topic, partition, offset)
            if answered is None:
                self.world.run_for(RETRY_MS)
                continue
            end = answered.high_watermark if end < 0 else end
            for position, header in iterate_headers(answered.records):
                batch = answered.records[position : position + header.size_bytes]
                for record in iterate_records(batch):
                    key, value = (
                        None if x is None else bytes(x).decode() for x in (record.key, record.value)
                    )
                    found.append(ReadRecord(partition, record.offset, key, value, record.timestamp_ms))
                offset = header.next_offset
        return found

    def _fetch(self, topic: str, partition: int, offset: int) -> Any:
        asked = fetch_client.consumer_request(
            topic,
            partition,
            offset,
            FETCH_BYTES,
            max_wait_ms=100,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation=0,
        )
        body = fetch_client.encode_request(FETCH_VERSION, asked)
        answer = self.request(self.wait_leader(topic, partition), FETCH, FETCH_VERSION, body)
        if isinstance(answer, PeerFault):
            return None
        [found] = fetch_client.decode_response(FETCH_VERSION, answer).partitions
        return None if found.error else found

    # The wire

    def wire(self, broker_id: int) -> Wire:  # type: ignore[override]
        """The client's connection to a broker, as long as both sides have it."""
        target = self.machine(broker_id)
        wire = self.wires.get(broker_id)
        if wire is None or wire.closed or wire.target is not target:
            wire = self.wires[broker_id] = Wire(self.world.network, CLIENT, None, target)
        return wire

    def request(
        self, broker_id: int, api_key: int, version: int, body: bytes, timeout_ms: int = ANSWER_MS
    ) -> memoryview | PeerFault:
        """Send and let time pass until the answer, or the fault, is there."""
        if self.machine(broker_id).ended:
            self.world.run_for(1)
            return PeerFault("refused")
        frame = frame_prefix(api_key, version, 1, CLIENT_ID, len(body))[4:] + body
        answers: list[bytes | PeerFault] = []
        self.wire(broker_id).request(frame, answers.append, timeout_ms)
        self.world.run_until(lambda: bool(answers), timeout_ms + 10)
        if not answers or isinstance(answers[0], PeerFault):
            return PeerFault("no answer")
        return response_body(memoryview(answers[0])[4:], flexible_answer(api_key, version))

    def ask_until(
        self, api_key: int, version: int, fields: dict[str, Any], error_of: Callable[[Any], int]
    ) -> None:
        """Ask any broker that answers, again and again, until it is done."""
        body = encode_request(api_key, version, fields)

        def done() -> bool:
            for broker in self.cluster.responsive_ids:
                answer = self.request(broker, api_key, version, body, timeout_ms=6_000)
                if not isinstance(answer, PeerFault):
                    return not error_of(decode_response(api_key, version, answer))
            return False

        self.wait(f"API {api_key} is answered", done)

    # Time

    def wait(self, what: str, ready: Callable[[], bool], timeout_seconds: float = WAIT_SECONDS) -> float:
        """How many seconds of simulated time it took."""
        began_ms = self.world.now_ms
        super().wait(what, ready, timeout_seconds)
        return (self.world.now_ms - began_ms) / 1000

    def wait_value(self, what: str, find: Callable[[], Any], timeout_seconds: float = WAIT_SECONDS) -> Any:
        until_ms = self.world.now_ms + int(timeout_seconds * 1000)
        while True:
            try:
                found = find()
            except (NoView, LookupError):
                found = None
            if found is not None:
                return found
            if self.world.now_ms >= until_ms:
                raise TimeoutError(f"seed {self.seed}: in vain until {what}")
            self.world.run_for(STEP_MS)


class SimulatedView:
    """What `lab.cluster` is asked by scenarios."""

    def __init__(self, lab: SimulatedLab) -> None:
        self._lab = lab
        self.broker_ids = tuple(range(1, lab.scenario.brokers + 1))

    @property
    def responsive_ids(self) -> list[int]:
        machines = self._lab.world.machines.values()
        return [machine.node_id for machine in machines if machine.running and machine.open]

    def view(self, broker_id: int | None = None) -> ClusterView:
        """What a broker's image says; whose, is up to the seed."""
        asked = self.responsive_ids if broker_id is None else [broker_id]
        if not asked:
            raise NoView("no broker runs")
        chosen = self._lab.machine(self._lab.world.random.choice(asked))
        image = chosen.broker.image
        found = tuple(
            PartitionView(topic.name, index, state.leader, tuple(state.replicas), tuple(state.isr))
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
        )
        return ClusterView(image.controller_id, {n: f"host{n}:9092" for n in image.alive_brokers}, found)

    def partition(self, topic: str, partition: int) -> PartitionView:
        return self.view().partition(topic, partition)

    def leader(self, topic: str, partition: int) -> int:
        return self.partition(topic, partition).leader

    def wait_controller(self, other_than: int | None = None) -> int:
        def decides() -> int | None:
            found = self.view().controller_id
            return None if found < 0 or found == other_than else found

        return int(self._lab.wait_value("there is another controller", decides))

    def wait_in_sync(self, topics: Iterable[str]) -> None:
        wanted = set(topics)

        def whole() -> bool:
            for broker in self.responsive_ids:
                found = [item for item in self.view(broker).partitions if item.topic in wanted]
                if {item.topic for item in found} != wanted:
                    return False
                if any(item.leader < 0 or set(item.isr) != set(item.replicas) for item in found):
                    return False
            return True

        self._lab.wait(f"{sorted(wanted)} are whole", whole)


class SimulatedFaults:
    """The faults of a simulated lab."""

    def __init__(self, lab: SimulatedLab) -> None:
        self._lab = lab

    def kill(self, broker_id: int) -> None:
        machine = self._lab.machine(broker_id)
        machine.end()
        if machine.store is not None:
            machine.store.expire()
        self._lab.world.run_for(1)

    def start(self, broker_id: int) -> None:
        lab = self._lab
        old = lab.machine(broker_id)
        old.refuse_old_wires()
        machine = Machine(lab.world, broker_id, old.disk.kill(), old.clock, life=old.life + 1)
        lab.world.machines[broker_id] = machine
        machine.start()
        lab.wait(f"broker {broker_id} is registered", lambda: bool(machine.registered))
        lab.wait(
            f"all know broker {broker_id}",
            lambda: all(broker_id in lab.cluster.view(n).addresses for n in lab.cluster.responsive_ids),
        )

    def pause(self, broker_id: int) -> None:
        """The store gives its session up after a while, as long as it stands."""
        machine = self._lab.machine(broker_id)
        machine.frozen = True
        store = machine.store
        assert store is not None
        due_ms = self._lab.world.now_ms + SESSION_MS
        self._lab.world.events.at(due_ms, None, lambda: store.expire() if machine.frozen else None)

    def resume(self, broker_id: int) -> None:
        self._lab.machine(broker_id).thaw()

    def cut(self, broker_id: int) -> None:
        self._lab.world.network.cuts |= self._pairs(broker_id)

    def heal(self, broker_id: int) -> None:
        self._lab.world.network.heal(self._pairs(broker_id))

    def _pairs(self, broker_id: int) -> set[tuple[int, int]]:
        others = [CLIENT, *(number for number in self._lab.cluster.broker_ids if number != broker_id)]
        return {pair for other in others for pair in ((broker_id, other), (other, broker_id))}

    def expire_session(self, broker_id: int) -> None:
        lab = self._lab
        self.pause(broker_id)
        lab.wait("its session is over", lambda: broker_id not in lab.cluster.view().addresses)
        self.resume(broker_id)


class SimulatedSender:
    """A producer that sends one record after the other, with retries as clients have them."""

    def __init__(self, lab: SimulatedLab, **options: Any) -> None:
        self._lab = lab
        self._acks = {"all": -1}.get(options.get("acks", "all"), options.get("acks", "all"))
        self._acks = -1 if self._acks == "all" else int(self._acks)
        self._retries = int(options.get("retries", 1_000_000))
        self._timeout_ms = int(options.get("message_timeout_ms", 30_000))
        self._waiting: list[tuple[str, str | None, str | None, int]] = []
        self.deliveries: list[Delivery] = []

    def send(self, topic: str, value: Any, key: Any = None, *, partition: int | None = None) -> None:
        self._waiting.append((topic, key, value, partition or 0))

    def flush(self, timeout_seconds: float = WAIT_SECONDS) -> list[Delivery]:
        waiting, self._waiting = self._waiting, []
        began_ms = self._lab.world.now_ms
        for topic, key, value, partition in waiting:
            self.deliveries.append(self._deliver(topic, key, value, partition, began_ms))
        return list(self.deliveries)

    def fates(self, timeout_seconds: float = WAIT_SECONDS) -> list[Delivery]:
        """Every record has one after a flush here, if only _MSG_TIMED_OUT."""
        return self.flush(timeout_seconds)

    def abandon(self) -> None:
        self._waiting.clear()

    def _deliver(self, topic: str, key: Any, value: Any, partition: int, began_ms: int) -> Delivery:
        """All records of a flush have the same deadline, as records that were sent together do."""
        world = self._lab.world
        error: str | None = "_MSG_TIMED_OUT"
        offset = -1
        tries = 0
        while world.now_ms - began_ms < self._timeout_ms and tries <= self._retries:
            tries += 1
            found = self._try(topic, key, value, partition)
            if found is not None:
                code, offset = found
                if code is ErrorCode.NONE:
                    error = None
                    break
                error = code.name if tries > self._retries else error
            world.run_for(RETRY_MS)
        return Delivery(topic, key, value, partition, offset, error, world.now_ms - began_ms)

    def _try(self, topic: str, key: Any, value: Any, partition: int) -> tuple[ErrorCode, int] | None:
        """Error and offset that the leader answered with; None if there is no leader, or no answer."""
        lab = self._lab
        leader = self._leader(topic, partition)
        if leader is None:
            return None
        record = Record(0, lab.world.now_ms, _bytes(key), _bytes(value))
        batch = produce_requests.BatchToSend(topic, partition, build_batch([record]))
        pieces = produce_requests.encode_request([batch], None, ANSWER_MS - 200, self._acks)
        body = b"".join(bytes(piece) for piece in pieces)
        if self._acks == 0:
            frame = frame_prefix(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID, len(body))[4:] + body
            lab.wire(leader).requests.send([(frame, 0, None)])
            return ErrorCode.NONE, -1
        answer = lab.request(leader, PRODUCE, PRODUCE_VERSION, body)
        if isinstance(answer, PeerFault):
            return None
        [told] = produce_requests.decode_response(PRODUCE_VERSION, answer)
        return ErrorCode(told.error), told.base_offset

    def _leader(self, topic: str, partition: int) -> int | None:
        """Clients keep what they know: a leader that only stands still is taken for the leader."""
        try:
            found = self._lab.leader(topic, partition)
        except (NoView, LookupError):
            return None
        return found if found >= 0 and not self._lab.machine(found).ended else None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()

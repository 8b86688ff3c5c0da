"""How groups of real clients behave: they join, leave, crash, get partitions, lose and find their broker.

Each member is a process of its own (`group_member.py`, `kafkajs/member.js`, `java/Member.java`) that says
when it may read which partition and what it has read. Of every group must hold: no partition has two
readers at once, and every record is processed at least once; twice only where a crash or a change of
protocol kept it from being committed. The same is asked of what the coordinator stored (`group_history.py`).

With TIDELOG_TEST_BOOTSTRAP the groups live on a foreign broker (tests/conformance/oracle), save where that
broker would have to be restarted or its answers counted.
"""

import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tests.conformance.drivers.contract import new_name, require_program
from tests.conformance.drivers.java import java_command
from tests.conformance.group_history import Owners, check_one_owner_each, owners_of
from tests.conformance.group_member import COMMIT_RECORDS
from tests.support.child_programs import environment, program
from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
from tidelog.model.effects import Reply
from tidelog.model.errors import ErrorCode
from tidelog.testing.broker import RunningBroker

HERE = Path(__file__).parent
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}
DEADLINE_SECONDS = 40.0
GROUPS_AT_ONCE = 4
LIVES = [
    ("confluent", "range"),
    ("confluent", "roundrobin"),
    ("confluent", "cooperative-sticky"),
    ("confluent-consumer", "uniform"),
    ("confluent-consumer", "range"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
    ("kafkajs", "roundrobin"),
    ("java", "range"),
    ("java", "cooperative-sticky"),
    ("java-consumer", "uniform"),
]
JAVA_PROTOCOLS = {"java": "classic", "java-consumer": "consumer"}


@pytest.fixture
def own_broker_only(oracle: bool) -> None:
    if oracle:
        pytest.skip("restarts its broker or counts its answers")


@dataclass
class Held:
    """A time in which a member might read a partition."""

    partition: int
    member: str
    since: float
    until: float = float("inf")


class MemberProcess:
    """A member, and everything it said."""

    def __init__(
        self, client: str, bootstrap: str, group: str, topic: str, strategy: str, instance: str = "-"
    ) -> None:
        self.name = new_name("member")
        where = (bootstrap, group, topic)
        command = [*program("tests.conformance.group_member"), client, *where, strategy, instance]
        if client == "kafkajs":
            command = [require_program("node"), str(HERE / "kafkajs" / "member.js"), *where]
        elif client in JAVA_PROTOCOLS:
            source = HERE / "java" / "Member.java"
            command = java_command(source, JAVA_PROTOCOLS[client], *where, strategy, instance)
        self.held: list[Held] = []
        self.read: list[tuple[int, str]] = []
        self.refused_commits: list[str] = []
        self.lost_count = 0
        self.assignment_count = 0
        self.killed = False
        self._complaints = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (as long as the member)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environment(),
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if not line.endswith("\n"):
                return  # killed in the middle of a word
            kind, at, *fields = line.split()
            if kind == "V":
                self.read.append((int(fields[0]), fields[1]))
                continue
            if kind == "C":
                self.refused_commits.append(fields[0])
                continue
            if fields[0] == "all":
                self._release(float(at))
                continue
            partitions = [int(partition) for partition in fields[0].split(",") if partition != "-"]
            if kind == "A":
                self.assignment_count += 1
                self.held += [Held(partition, self.name, float(at)) for partition in partitions]
            else:
                self.lost_count += kind == "L"
                self._release(float(at), partitions)

    def _release(self, at: float, partitions: list[int] | None = None) -> None:
        for held in self.held:
            if held.until == float("inf") and (partitions is None or held.partition in partitions):
                held.until = at

    def __repr__(self) -> str:
        """What it holds; if it has ended, how and why."""
        if self._child.poll() is None:
            return str(sorted(self.owned))
        self._complaints.seek(0)
        return f"ended with {self._child.returncode}: {self._complaints.read()[-1500:]}"

    @property
    def owned(self) -> set[int]:
        return {held.partition for held in self.held if held.until == float("inf")}

    def leave(self) -> None:
        assert self._child.stdin is not None
        assert self._child.poll() in (None, 0), self
        if self._child.poll() is None:
            self._child.stdin.write("leave\n")
            self._child.stdin.close()
        try:
            self._child.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._listener.join(DEADLINE_SECONDS)
        assert self._child.returncode == 0, self
        assert not self.owned, f"{self} left without a word"

    def kill(self) -> None:
        """A crash: the member reads nothing from here on, and says nothing of it."""
        self.killed = True
        self._child.kill()
        self._child.wait(DEADLINE_SECONDS)
        self._listener.join(DEADLINE_SECONDS)
        self._release(time.monotonic())


@dataclass
class GroupUnderTest:
    """A topic that is written to all the time, and the group that reads it."""

    bootstrap: str
    client: str
    strategy: str
    topic: str = field(default_factory=lambda: new_name("life"))
    group: str = field(default_factory=lambda: new_name("group"))
    partition_count: int = 4
    members: list[MemberProcess] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        futures = self.admin.create_topics([NewTopic(self.topic, self.partition_count, 1)])
        futures[self.topic].result(DEADLINE_SECONDS)
        self._writing = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def start_writing(self) -> None:
        self._writing.set()
        self._writer.start()

    def _write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 300,
                "log_level": 0,
            }
        )
        while self._writing.is_set():
            for partition in range(self.partition_count):
                try:
                    producer.produce(self.topic, str(self.written).encode(), partition=partition)
                except KafkaException as refused:
                    # A partition that was added a moment ago.
                    assert refused.args[0].code() == KafkaError._UNKNOWN_PARTITION
                    continue
                self.written += 1
            producer.poll(0)
            time.sleep(0.04)
        assert producer.flush(DEADLINE_SECONDS) == 0

    def join(self, instance: str = "-") -> MemberProcess:
        member = MemberProcess(self.client, self.bootstrap, self.group, self.topic, self.strategy, instance)
        self.members.append(member)
        return member

    def await_shared(self, *members: MemberProcess) -> None:
        """Until these members, and no others, hold all partitions, as evenly as can be."""
        least = self.partition_count // len(members)

        def shared() -> bool:
            owned = [member.owned for member in members]
            together = sorted(partition for each in owned for partition in each)
            return together == list(range(self.partition_count)) and min(map(len, owned)) >= least

        await_that(shared, lambda: f"{self.client} {self.strategy}: {members}")

    def add_partitions(self, count: int) -> None:
        self.admin.create_partitions([NewPartitions(self.topic, count)])[self.topic].result(DEADLINE_SECONDS)
        self.partition_count = count

    def finish(self) -> Counter[str]:
        """Read to the end and leave; how often each record was processed."""
        self._writing.clear()
        self._writer.join(DEADLINE_SECONDS)

        def processed() -> int:
            return len({value for member in self.members for _, value in list(member.read)})

        await_that(lambda: processed() == self.written, lambda: f"read {processed()} of {self.written}")
        for member in self.members:
            if not member.killed:
                member.leave()
        check_one_reader_each([held for member in self.members for held in member.held])
        check_one_owner_each(owners_of(self.bootstrap, self.group))
        return Counter(value for member in self.members for _, value in member.read)

    def close(self) -> None:
        self._writing.clear()
        for member in self.members:
            member.kill()


def check_one_reader_each(holds: list[Held]) -> None:
    for one, other in combinations(sorted(holds, key=lambda held: held.since), 2):
        overlap_seconds = min(one.until, other.until) - other.since
        shared = one.partition == other.partition and one.member != other.member and overlap_seconds > 0
        assert not shared, f"{one} and {other} overlap by {overlap_seconds:.3f} s"


def test_two_readers_would_be_noticed() -> None:
    check_one_reader_each([Held(0, "a", 1, 2), Held(0, "b", 2), Held(1, "a", 1), Held(0, "a", 1.5, 2)])
    with pytest.raises(AssertionError, match=r"overlap by 0\.500 s"):
        check_one_reader_each([Held(0, "a", 1, 9), Held(0, "a", 2, 3), Held(0, "b", 8.5)])


def test_two_owners_would_be_noticed() -> None:
    first, second = frozenset({("topic", 0)}), frozenset({("topic", 1)})
    check_one_owner_each([Owners(1, 0, {"a": first, "b": second}), Owners(2, 0, {"b": first})])
    with pytest.raises(AssertionError, match="belongs to a and b"):
        check_one_owner_each([Owners(1, 0, {"a": first, "b": first | second})])


def await_that(holds: Callable[[], bool], what: Callable[[], str], seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(what())
        time.sleep(0.02)


@pytest.fixture(scope="module")
def home(oracle: bool, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the groups live: the bootstrap address of a broker with quick groups."""
    if oracle:
        yield request.getfixturevalue("bootstrap")
        return
    with RunningBroker(SETTINGS, mode="process") as running:
        yield running.bootstrap


# ---------------------------------------------------------------- join, leave, crash, added partitions


def live(bootstrap: str, client: str, strategy: str) -> str:
    """A whole life of a group: one member, two, three; one leaves, one crashes; partitions are added."""
    group = GroupUnderTest(bootstrap, client, strategy)
    try:
        group.start_writing()
        first = group.join()
        group.await_shared(first)
        second, third = group.join(), group.join()
        group.await_shared(first, second, third)
        second.leave()
        group.await_shared(first, third)
        third.kill()
        group.await_shared(first)
        group.add_partitions(6)
        group.await_shared(first)
        fourth = group.join()
        group.await_shared(first, fourth)
        times = group.finish()
        repeated = sum(count - 1 for count in times.values())
        return f"{client} {strategy}: {group.written} records, {repeated} repeated"
    finally:
        group.close()


@pytest.fixture(scope="module")
def lives(home: str) -> Iterator[dict[tuple[str, str], Future[str]]]:
    """All lives, some at a time: each waits most of the time."""
    with ThreadPoolExecutor(GROUPS_AT_ONCE) as pool:
        yield {life: pool.submit(live, home, *life) for life in LIVES}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("life", LIVES, ids="-".join)
def test_members_come_and_go(life: tuple[str, str], lives: dict[tuple[str, str], Future[str]]) -> None:
    print(lives[life].result(3 * DEADLINE_SECONDS))


# ---------------------------------------------------------------- static members and a rolling restart


def roll(bootstrap: str, client: str, strategy: str) -> str:
    """Three static members are restarted one after another: each gets back what it had, the others notice
    nothing.
    """
    group = GroupUnderTest(bootstrap, client, strategy)
    try:
        group.start_writing()
        members = [group.join(f"instance-{number}") for number in range(3)]
        group.await_shared(*members)
        before = [member.owned for member in members]
        counts = [member.assignment_count for member in members]
        for number in range(3):
            members[number].leave()
            members[number] = group.join(f"instance-{number}")
            await_that(
                lambda number=number: members[number].owned == before[number],  # type: ignore[misc]
                lambda number=number: f"{client}: {members[number].owned}, before {before[number]}",  # type: ignore[misc]
            )
        undisturbed = [member.assignment_count for member in members] == [1, 1, 1]
        assert undisturbed, f"{client}: {counts} assignments, then {[m.assignment_count for m in members]}"
        times = group.finish()
        repeated = sum(count - 1 for count in times.values())
        assert repeated == 0, f"{client}: {repeated} records were processed twice"
        return f"{client} {strategy}: {group.written} records, none repeated"
    finally:
        group.close()


STATIC = [
    ("confluent", "range"),
    ("confluent-consumer", "uniform"),
    ("aiokafka", "roundrobin"),
    ("kafka-python", "sticky"),
]


@pytest.fixture(scope="module")
def rolls(home: str) -> Iterator[dict[tuple[str, str], Future[str]]]:
    with ThreadPoolExecutor(len(STATIC)) as pool:
        yield {each: pool.submit(roll, home, *each) for each in STATIC}


@pytest.mark.parametrize("static", STATIC, ids="-".join)
def test_static_members_restart_one_by_one(
    static: tuple[str, str], rolls: dict[tuple[str, str], Future[str]]
) -> None:
    print(rolls[static].result(2 * DEADLINE_SECONDS))


# ---------------------------------------------------------------- between the protocols


def migrate(bootstrap: str) -> str:
    """Members of the consumer protocol take the places of classic ones, and a classic one theirs."""
    group = GroupUnderTest(bootstrap, "confluent", "range")
    types = []

    def note_type() -> None:
        listed = group.admin.list_consumer_groups().result(DEADLINE_SECONDS)
        types.append(next(str(each.type) for each in listed.valid if each.group_id == group.group))

    try:
        group.start_writing()
        old = [group.join(), group.join()]
        group.await_shared(*old)
        note_type()
        group.client, group.strategy = "confluent-consumer", "uniform"
        new = [group.join()]
        group.await_shared(*old, *new)
        old[0].leave()
        new.append(group.join())
        group.await_shared(old[1], *new)
        old[1].leave()
        group.await_shared(*new)
        note_type()
        group.client, group.strategy = "confluent", "range"
        back = group.join()
        group.await_shared(*new, back)
        for member in new:
            member.leave()
        group.await_shared(back)
        note_type()
        times = group.finish()
        assert [kind.rpartition(".")[2] for kind in types] == ["CLASSIC", "CONSUMER", "CLASSIC"]
        # The group's epoch has grown when the last of the new members goes, and it is the generation of the
        # classic group. The member that stays has not heard of it and cannot commit what it read last.
        repeated = {value for value, count in times.items() if count > 1}
        kept_its_place = Counter(value for _, value in back.read)
        assert all(times[value] == kept_its_place[value] == 2 for value in repeated), repeated
        assert len(repeated) <= COMMIT_RECORDS, repeated
        refused = [error for member in group.members for error in member.refused_commits]
        lost = sum(member.lost_count for member in group.members)
        return f"{group.written} records, {len(repeated)} repeated, refused: {refused}, lost: {lost}"
    finally:
        group.close()


def test_a_group_moves_to_the_consumer_protocol_and_back(home: str) -> None:
    print(migrate(home))


# ---------------------------------------------------------------- the broker goes and comes back

SURVIVORS = [
    ("confluent", "cooperative-sticky"),
    ("confluent-consumer", "uniform"),
    ("kafka-python", "range"),
    ("aiokafka", "range"),
    ("kafkajs", "roundrobin"),
]


@pytest.mark.usefixtures("own_broker_only")
def test_groups_go_on_after_a_broker_was_killed() -> None:
    """Groups read on after the broker under them was killed and started again."""
    with RunningBroker(SETTINGS, mode="process") as broker:
        groups = [GroupUnderTest(broker.bootstrap, *each) for each in SURVIVORS]
        try:
            for group in groups:
                group.start_writing()
                group.join()
                group.join()
            for group in groups:
                group.await_shared(*group.members)
            broker.kill()
            time.sleep(0.5)
            broker.start()
            written = [group.written for group in groups]
            await_that(lambda: all(g.written > w + 100 for g, w in zip(groups, written, strict=True)), str)
            for group in groups:
                times = group.finish()
                repeated = sum(count - 1 for count in times.values())
                print(f"{group.client}: {group.written} records, {repeated} repeated")
        finally:
            for group in groups:
                group.close()


# ---------------------------------------------------------------- many members


def count_answers(monkeypatch: pytest.MonkeyPatch) -> Counter[ErrorCode]:
    """How often the coordinator of a broker in this process answers with which error."""
    answered: Counter[ErrorCode] = Counter()
    original = GroupCoordinator._answer

    def answer(self: GroupCoordinator, reply: Reply) -> None:
        error = reply.response.get("error_code")
        if isinstance(error, ErrorCode):
            answered[error] += 1
        original(self, reply)

    monkeypatch.setattr(GroupCoordinator, "_answer", answer)
    return answered


@pytest.mark.usefixtures("own_broker_only")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_twenty_members_share_sixty_partitions(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = count_answers(monkeypatch)
    with RunningBroker(SETTINGS) as broker:
        broker.create_topic("wide", partitions=60)
        settings: dict[str, object] = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "wide",
            "group.protocol": protocol,
            "log_level": 0,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
            settings |= {"partition.assignment.strategy": "cooperative-sticky"}
        members = [Consumer(settings) for _ in range(20)]
        try:
            began = time.monotonic()
            for member in members:
                member.subscribe(["wide"])

            def settled() -> bool:
                for member in members:
                    member.poll(0.005)
                owned = [{each.partition for each in member.assignment()} for member in members]
                together = sorted(partition for each in owned for partition in each)
                return together == list(range(60)) and {len(each) for each in owned} == {3}

            await_that(settled, lambda: str(answered))
            seconds = time.monotonic() - began
            counted = {error.name: count for error, count in answered.most_common()}
            print(f"{protocol}: 20 members and 60 partitions settled in {seconds:.1f} s, answers {counted}")
            assert answered[ErrorCode.UNKNOWN_MEMBER_ID] <= 2
            assert answered[ErrorCode.FENCED_MEMBER_EPOCH] == 0
        finally:
            for member in members:
                member.close()


# ---------------------------------------------------------------- more members than partitions

CROWDS = [
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("confluent-consumer", "uniform"),
    ("kafka-python", "range"),
    ("aiokafka", "roundrobin"),
    ("kafkajs", "roundrobin"),
]


def crowd(bootstrap: str, client: str, strategy: str) -> str:
    """Six members, four partitions: two idle until others leave."""
    group = GroupUnderTest(bootstrap, client, strategy)
    try:
        group.start_writing()
        members = [group.join() for _ in range(6)]
        await_that(
            lambda: sorted(len(member.owned) for member in members) == [0, 0, 1, 1, 1, 1],
            lambda: f"{client} {strategy}: {members}",
        )
        for member in [member for member in members if member.owned][:2]:
            member.leave()
            members.remove(member)
        group.await_shared(*members)
        times = group.finish()
        repeated = sum(count - 1 for count in times.values())
        # Who leaves while the others still share out what the one before gave up may not commit.
        refused = [error for member in group.members for error in member.refused_commits]
        assert repeated <= COMMIT_RECORDS * len(refused), (
            f"{client} {strategy}: {repeated} repeated, though all left in good order; refused: {refused}"
        )
        return f"{client} {strategy}: {group.written} records, {repeated} repeated, refused: {refused}"
    finally:
        group.close()


@pytest.fixture(scope="module")
def crowds(home: str) -> Iterator[dict[tuple[str, str], Future[str]]]:
    with ThreadPoolExecutor(2) as pool:
        yield {each: pool.submit(crowd, home, *each) for each in CROWDS}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("crowded", CROWDS, ids="-".join)
def test_surplus_members_wait_for_their_turn(
    crowded: tuple[str, str], crowds: dict[tuple[str, str], Future[str]]
) -> None:
    print(crowds[crowded].result(3 * DEADLINE_SECONDS))

"""The world of `group_world` with members of the consumer protocol (KIP-848), and classic ones beside.

Members report in order, as on a connection, but lose and wait for answers, crash, fall silent and come back;
topics grow, go and come; appends are refused; the coordinator crashes or resigns. What must hold after every
step: no partition is read by two members of the group, what a member was told is replicated and never taken
back, epochs only grow, every member has its timers, a replay gives the same groups. When the faults end,
every member reads exactly its target, and the targets together are all there is to read.
"""

from collections.abc import Callable
from uuid import UUID

from tests.simulation.group_world import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    TOPIC,
    Broken,
    Client,
    GroupWorld,
    must,
)
from tidelog.groups.commands import (
    Command,
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    OffsetToCommit,
)
from tidelog.groups.consumer_group import STATIC_LEAVING_EPOCH, ConsumerGroup
from tidelog.groups.consumer_protocol import assignment, read_assignment
from tidelog.groups.consumer_schemas import MemberState, Partition
from tidelog.groups.durable import DurableGroups
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.model.effects import Append
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage

SETTINGS = GroupSettings(
    group_min_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=200,
    new_member_join_timeout_ms=8_000,
    consumer_session_timeout_ms=SESSION_MS,
    consumer_heartbeat_interval_ms=400,
)
ONE_REPLICA = PartitionImage(1, 0, (1,), (1,))
PARTITIONS_MAX = 9
BEAT_MS = 400
ANSWER_MS = 900
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


class ConsumerClient(Client):
    """A member of the consumer protocol: gives partitions up, then reports that; takes what it is told."""

    world: "ConsumerWorld"

    def __init__(
        self, world: "ConsumerWorld", name: str, instance_id: str | None, topics: tuple[str, ...], regex: str
    ) -> None:
        super().__init__(world, name, instance_id)
        self.topics = topics
        self.regex = regex
        self.member_epoch = 0
        self.reads: frozenset[Partition] = frozenset()
        self.full = True
        self.told_epochs: list[int] = []

    def start(self) -> None:
        self.alive = True
        self.member_id = f"{self.name}-{self.world.random.getrandbits(32):08x}"
        self.join()

    def begin(self) -> None:
        """Let go of everything in flight and report from here on."""
        self.epoch += 1
        self.full = True
        self.beat_again()

    def stop(self) -> None:
        super().stop()
        self.reads = frozenset()

    def leave(self) -> None:
        epoch = -2 if self.instance_id is not None and self.world.random.random() < 0.7 else -1
        member_id = self.member_id
        self.world.send(
            self,
            lambda token: ConsumerHeartbeat(
                token, GROUP, member_id, epoch, self.name, "/sim", instance_id=self.instance_id
            ),
            None,
        )
        self.stop()

    def join(self) -> None:
        """Drop all and join again under the same id."""
        self.join_anew()
        self.begin()

    def join_anew(self) -> None:
        self.reads = frozenset()
        self.member_epoch = 0
        self.told_epochs.clear()

    def wake_old_self(self) -> None:
        """A part of the client that has slept through two epochs says that it reads nothing."""
        if len(self.told_epochs) < 3:
            return
        member_id, member_epoch = self.member_id, self.told_epochs[-3]

        def command(token: int) -> ConsumerHeartbeat:
            self.world.outdated.add(token)
            return ConsumerHeartbeat(
                token, GROUP, member_id, member_epoch, self.name, "/sim", owned=frozenset()
            )

        self.world.send(self, command, None)

    def beat_again(self) -> None:
        epoch, answered = self.epoch, []
        full, member_id, member_epoch, reads = self.full, self.member_id, self.member_epoch, self.reads

        def command(token: int) -> ConsumerHeartbeat:
            return ConsumerHeartbeat(
                token,
                GROUP,
                member_id,
                member_epoch,
                self.name,
                "/sim",
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS if full else -1,
                subscribed_topic_names=self.topics if full else None,
                subscribed_topic_regex=self.regex if full and self.regex else None,
                owned=reads,
            )

        def then(response: dict[str, object]) -> None:
            if self.epoch == epoch and self.alive:
                answered.append(True)
                self.told(response)

        def timed_out() -> None:
            if self.epoch == epoch and self.alive and not answered:
                self.begin()

        self.world.send(self, command, then)
        self.world.later(ANSWER_MS, timed_out)

    def told(self, response: dict[str, object]) -> None:
        error = response["error_code"]
        self.full = error is not ErrorCode.NONE
        if error is ErrorCode.NONE:
            self.member_epoch = int(response["member_epoch"])  # type: ignore[call-overload]
            if self.member_epoch not in self.told_epochs[-1:]:
                self.told_epochs.append(self.member_epoch)
            if response["assignment"] is not None:
                self.take(_partitions(response["assignment"]))
        elif error in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.FENCED_INSTANCE_ID,
        ):
            self.join_anew()
        self.again_later(BEAT_MS)
        if self.world.chance(0.1):
            self.wake_old_self()
        if self.reads and self.world.random.random() < 0.4:
            self.commit()

    def again_later(self, delay_ms: int) -> None:
        self.epoch += 1
        epoch = self.epoch
        self.world.later(delay_ms, lambda: self.beat_again() if self.alive and self.epoch == epoch else None)

    def take(self, assigned: frozenset[Partition]) -> None:
        """New partitions are read at once; what is lost is finished first, and then reported."""
        self.reads |= assigned
        lost = self.reads - assigned
        if lost:
            member_id, delay_ms = self.member_id, self.world.random.randint(0, 700)

            def give_up() -> None:
                if self.member_id == member_id:
                    self.reads -= lost - self.kept
                    if self.alive:
                        self.again_later(1)

            self.world.later(delay_ms, give_up)
        self.kept = assigned

    def commit(self) -> None:
        topic_id = self.world.image.topics[TOPIC].topic_id
        offsets = tuple(
            OffsetToCommit(TOPIC, index, self.world.next_offset())
            for read_id, index in sorted(self.reads)
            if read_id == topic_id
        )
        member_id, epoch = self.member_id, self.member_epoch
        if offsets:
            self.world.send(
                self, lambda token: CommitOffsets(token, GROUP, member_id, None, epoch, offsets), None
            )

    kept: frozenset[Partition] = frozenset()


class ClassicClient(Client):
    """The eager classic client, with the embedded consumer protocol that a coordinator can read."""

    world: "ConsumerWorld"
    metadata = SUBSCRIPTION

    @property
    def reads(self) -> frozenset[Partition]:
        return frozenset((self.world.image.topics["t"].topic_id, index) for index in self.owned)

    def assignments(self, members: list[str]) -> tuple[tuple[str, bytes], ...]:
        parts: dict[str, list[int]] = {member: [] for member in members}
        for partition in range(len(self.world.image.topics["t"].partitions)):
            parts[members[partition % len(members)]].append(partition)
        return tuple((member, assignment(0, [("t", owned)])) for member, owned in parts.items())

    def partitions(self, encoded: bytes) -> tuple[int, ...]:
        return tuple(index for name, indexes in read_assignment(encoded) for index in indexes if name == "t")


class ConsumerWorld(GroupWorld):
    """The seed decides everything, also whether classic members are about."""

    settings = SETTINGS

    def __init__(self, seed: int) -> None:
        super().__init__(seed, client_count=0)
        self.image = image_of(1, {"t": self.topic("t", 4)})
        self.delivered_ms: dict[str, int] = {}
        self.follower = DurableGroups()
        self.followed = 0
        self.seen_reading: object = None
        self.buried_token = 0
        self.outdated: set[int] = set()
        self.takeovers: set[int] = set()
        self.told_epoch = 0
        self.member_epochs: dict[str, int] = {}
        mixed = seed % 3 == 0
        self.clients = [
            ConsumerClient(self, "c0", None, ("t",), ""),
            ConsumerClient(self, "c1", None, ("t", "u"), ""),
            ConsumerClient(self, "c2", "s0", ("t",), ""),
            ConsumerClient(self, "c3", None, (), "t|u.*"),
        ]
        if mixed:
            self.clients[1:] = [
                ConsumerClient(self, "c1", "s0", ("t",), ""),
                ClassicClient(self, "k0", None),
                ClassicClient(self, "k1", "s1"),
            ]
        self.mixed = mixed

    def topic(self, name: str, partition_count: int) -> TopicImage:
        return TopicImage(name, UUID(int=self.random.getrandbits(128)), (ONE_REPLICA,) * partition_count)

    # ------------------------------------------------------------ the network keeps a client's order

    def send(
        self,
        client: Client,
        command: Callable[[int], Command],
        then: Callable[[dict[str, object]], None] | None,
    ) -> None:
        def answer(response: dict[str, object]) -> None:
            if then is not None and not self.chance(0.03):
                self.later(self.random.randint(1, 20), lambda: then(response) if client.alive else None)

        if client.silent_until_ms > self.now_ms or self.chance(0.03):
            return
        delay_ms = self.random.randint(1, 1_500) if self.chance(0.04) else self.random.randint(1, 20)
        at_ms = max(self.delivered_ms.get(client.name, 0), self.now_ms + delay_ms)
        self.delivered_ms[client.name] = at_ms
        for _ in range(2 if self.chance(0.04) else 1):
            self.later(at_ms - self.now_ms, lambda: self.receive(command, answer))

    # ------------------------------------------------------------ the coordinator's side

    def new_machine(self) -> GroupMachine:
        machine = GroupMachine(0, self.settings)
        machine.observe(self.image)
        return machine

    def append(self, effect: Append) -> None:
        group = self.group()
        super().append(effect)
        if group is not None and self.group() is None:
            # Buried, or a classic group now: epochs begin anew, though older answers may be on their way.
            self.buried_token = self._token
            self.told_epoch = 0
            self.member_epochs.clear()

    def step(self, command: Command) -> None:
        if isinstance(command, ConsumerHeartbeat) and command.member_epoch == 0:
            group = self.group()
            holder = group.static_members.get(command.instance_id or "") if group is not None else None
            if group is not None and holder not in (None, command.member_id):
                away = group.current_of(holder or "").epoch == STATIC_LEAVING_EPOCH
                if not away and group.members[holder or ""].classic is None:
                    self.takeovers.add(command.token)
        super().step(command)

    def group(self) -> ConsumerGroup | None:
        return self.machine.durable.consumer_groups.get(GROUP) if self.machine is not None else None

    def member_ids(self) -> set[str]:
        assert self.machine is not None
        consumer, classic = self.group(), self.machine.groups.get(GROUP)
        if consumer is not None:
            return set(consumer.members)
        return set(classic.members) if classic is not None else set()

    # ------------------------------------------------------------ faults

    def change_topics(self) -> None:
        topics = dict(self.image.topics)
        what = self.random.random()
        count = len(topics["t"].partitions)
        if what < 0.5 and count < PARTITIONS_MAX:
            old = topics["t"]
            topics["t"] = TopicImage("t", old.topic_id, (ONE_REPLICA,) * (count + 1))
        elif "u" in topics:
            del topics["u"]
        else:
            topics["u"] = self.topic("u", self.random.randint(1, 3))
        self.image = image_of(self.image.version + 1, topics)
        if self.machine is not None:
            self.machine.observe(self.image)

    def trouble(self) -> None:
        if self.faulty and self.random.random() < 0.15:
            self.change_topics()
        super().trouble()

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        machine = self.machine
        if machine is None:
            return
        self.check_timers(machine)
        self.check_consumer_timers()
        self.check_parked(machine)
        self.check_readers()
        if self.steps % 50 == 0:
            self.check_replay()

    def check_consumer_timers(self) -> None:
        group = self.group()
        if group is None:
            return
        for member_id, member in group.members.items():
            if ("consumer session", GROUP, member_id) not in self.timers:
                raise Broken(f"{member_id} has no session timer")
            unrevoked = group.current_of(member_id).state is MemberState.UNREVOKED_PARTITIONS
            if unrevoked and member.classic is None:
                key = ("consumer rebalance", GROUP, member_id)
                must(key in self.timers, f"{member_id} may keep what it must give up")

    def check_readers(self) -> None:
        """No two members of the group read a partition at once."""
        reading = [(client.alive, client.member_id, client.reads) for client in self.clients]  # type: ignore[attr-defined]
        members = self.member_ids()
        if (reading, members) == self.seen_reading:
            return
        self.seen_reading = (reading, members)
        readers: dict[Partition, str] = {}
        for client in self.clients:
            if client.alive and client.member_id in members:
                for partition in client.reads:  # type: ignore[attr-defined]
                    other = readers.setdefault(partition, client.member_id)
                    if other != client.member_id:
                        raise Broken(f"{partition} is read by {other} and {client.member_id}")

    def follow(self) -> DurableGroups:
        """What a follower that replays the log as it is replicated knows."""
        for offset in range(self.followed, self.replicated):
            self.follower.apply(*self.log[offset], offset)
        self.followed = self.replicated
        return self.follower

    def check_replay(self) -> None:
        if self.machine is None or self.replicated < len(self.log):
            return
        follower = self.follow()
        must(
            follower.comparable() == self.machine.durable.comparable(),
            "the replayed log is not the living state",
        )
        group, twin = self.group(), follower.consumer_groups.get(GROUP)
        if group is not None and twin is not None:
            must(twin.owners == group.owners, "the replayed owners are not the living ones")
            must(twin.static_members == group.static_members, "the replayed static members differ")

    def check_reply(self, command: Command, response: dict[str, object]) -> None:
        if isinstance(command, ConsumerHeartbeat) and response["error_code"] is ErrorCode.NONE:
            if command.member_epoch >= 0:
                self.check_told(command, response)
        elif isinstance(command, FetchOffsets | CommitOffsets):
            super().check_reply(command, response)
        elif isinstance(command, Heartbeat) and self.group() is not None:
            rejoins = response["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
            key = ("consumer join", GROUP, command.member_id)
            must(not rejoins or key in self.timers, f"{command.member_id} has forever to rejoin")

    def check_told(self, command: ConsumerHeartbeat, response: dict[str, object]) -> None:
        epoch, member_id = int(response["member_epoch"]), command.member_id  # type: ignore[call-overload]
        must(epoch > 0, f"{member_id} was told epoch {epoch}")
        must(command.token not in self.outdated, f"{member_id} was heard in epoch {command.member_epoch}")
        if command.token in self.takeovers:
            raise Broken(f"{member_id} took instance {command.instance_id} from a living member")
        if command.member_epoch > 0:
            before = self.member_epochs.get(member_id, 0)
            must(epoch >= before, f"{member_id} was told epoch {epoch} after {before}")
        if command.token <= self.buried_token:
            return
        self.member_epochs[member_id] = epoch
        self.told_epoch = max(self.told_epoch, epoch)
        group = self.group()
        if group is not None:
            must(group.epoch >= self.told_epoch, f"{group!r} after epoch {self.told_epoch} was told")
        stored = self.follow().consumer_groups.get(GROUP)
        must(
            stored is None or stored.epoch >= epoch or member_id not in stored.members,
            f"epoch {epoch} was told before it was replicated",
        )

    def simulate(self) -> str:
        """Once more quiet after a last change of the topics, which nothing but itself tells the members."""
        super().simulate()
        self.change_topics()
        self.run_until(self.now_ms + 8_000)
        self.check_settled()
        return self.trace.hexdigest()

    def check_settled(self) -> None:
        assert self.machine is not None
        must(not self.asked, f"unanswered in the end: {list(self.asked.values())}")
        fresh = DurableGroups()
        for offset, (key, value) in enumerate(self.log):
            fresh.apply(key, value, offset)
        must(fresh.comparable() == self.machine.durable.comparable(), "loading gives another state")
        group = self.group()
        must(group is not None, "no consumer group in the end")
        assert group is not None
        must(str(group.state) == "Stable", f"not settled: {group!r} {group.current}")
        everything = {
            (topic.topic_id, index)
            for name, topic in self.image.topics.items()
            for index in range(len(topic.partitions))
            if group.is_subscribed_to(name)
        }
        read: set[Partition] = set()
        for client in self.clients:
            must(client.member_id in group.members, f"{client.name} is no member in the end")
            reads = client.reads  # type: ignore[attr-defined]
            target = group.target_of(client.member_id)
            must(reads == target, f"{client.name} reads {sorted(reads)}, not {sorted(target)}")
            read |= reads
        must(read == everything, f"read in the end: {sorted(read)}, not {sorted(everything)}")


def image_of(version: int, topics: dict[str, TopicImage]) -> ClusterImage:
    names = {topic.topic_id: name for name, topic in topics.items()}
    return ClusterImage(version=version, topics=topics, topic_names_by_id=names)


def _partitions(response: object) -> frozenset[Partition]:
    topics = response["topic_partitions"]  # type: ignore[index]
    return frozenset((topic["topic_id"], index) for topic in topics for index in topic["partitions"])

"""The world of `group_world` with members of share groups, and share coordinators that begin and forget.

Members report in order, lose and wait for answers, crash, fall silent and come back; topics grow, go and
come; groups are emptied, deleted, and begin anew at other offsets; appends are refused; the coordinator
crashes or resigns; what is asked of share coordinators is lost, or done and not answered in time. After every
step must hold: members have timers, a replay gives the same groups, epochs only grow and are replicated when
they are told, nobody is assigned what has no state, and no state is begun anew under those who were assigned
it. When the faults end, everything that has to be read is assigned, to as many members as it takes for all to
have something."""

from tests.simulation.consumer_world import ConsumerClient, ConsumerWorld
from tests.simulation.group_world import GROUP, GroupWorld, must
from tidelog.groups.commands import (
    AlterShareOffsets,
    Command,
    DeleteGroup,
    DeleteShareOffsets,
    DeleteShareState,
    ExpireOffsets,
    ForgetTopic,
    InitializeShareState,
    ShareHeartbeat,
    ShareStateAnswered,
)
from tidelog.groups.consumer_schemas import Partition
from tidelog.groups.durable import DurableGroups
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.groups.share_group import ShareGroup
from tidelog.model.errors import ErrorCode

SESSION_MS = 3_000
SETTINGS = GroupSettings(
    share_session_timeout_ms=SESSION_MS,
    share_min_session_timeout_ms=SESSION_MS,
    share_heartbeat_interval_ms=400,
    share_min_heartbeat_interval_ms=400,
    share_initialize_retry_ms=2_000,
)
STORE_TIMEOUT_MS = 1_500
LEAVING = -1
REJOINS = frozenset(
    (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
)


class ShareClient(ConsumerClient):
    """Fetches from whatever it is told; there is nothing to give up first."""

    world: "ShareGroupWorld"

    def leave(self) -> None:
        member_id = self.member_id
        self.world.send(
            self, lambda token: ShareHeartbeat(token, GROUP, member_id, LEAVING, self.name, "/sim"), None
        )
        self.stop()

    def beat_again(self) -> None:
        epoch, answered = self.epoch, []
        names = self.topics if self.full else None
        member_id, member_epoch = self.member_id, self.member_epoch

        def command(token: int) -> ShareHeartbeat:
            return ShareHeartbeat(token, GROUP, member_id, member_epoch, self.name, "/sim", None, names)

        def then(response: dict[str, object]) -> None:
            if self.epoch == epoch and self.alive:
                answered.append(True)
                self.told(response)

        def timed_out() -> None:
            if self.epoch == epoch and self.alive and not answered:
                self.begin()

        self.world.send(self, command, then)
        self.world.later(900, timed_out)

    def told(self, response: dict[str, object]) -> None:
        error = response["error_code"]
        self.full = error is not ErrorCode.NONE
        if error is ErrorCode.NONE:
            self.member_epoch = int(response["member_epoch"])  # type: ignore[call-overload]
            if response["assignment"] is not None:
                self.reads = assigned(response)
        elif error in REJOINS:
            self.join_anew()
        self.again_later(400)


class ShareGroupWorld(ConsumerWorld):
    """The seed decides everything."""

    settings = SETTINGS
    prompt = ()
    machine: GroupMachine | None

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        topics = (("t",), ("t", "u"), ("t",), ("t",), ("u",)) if seed % 2 else (("t",),) * 8
        self.clients = [ShareClient(self, f"c{number}", None, read, "") for number, read in enumerate(topics)]
        self.begun: dict[Partition, int] = {}
        """The state epochs of what share coordinators keep."""
        self.in_use: set[Partition] = set()
        """What members were assigned since share coordinators have begun with it."""
        self.messages = 0

    def share_group(self) -> ShareGroup | None:
        return self.machine.durable.share_groups.get(GROUP) if self.machine is not None else None

    # ------------------------------------------------------------ share coordinators

    def carry(self, message: object) -> None:
        assert isinstance(message, InitializeShareState | DeleteShareState)
        machine = self.machine
        answered: list[bool] = []

        def answer(results: tuple[tuple[Partition, ErrorCode], ...]) -> None:
            if self.machine is machine and not answered:
                answered.append(True)
                self.step(ShareStateAnswered(message.number, message.group_id, results))

        def arrive() -> None:
            # What a coordinator had sent is lost with its connections.
            if self.machine is machine:
                results = tuple((one, self.done(message, one)) for one in partitions_of(message))
                if not self.chance(0.1):
                    self.later(self.random.randint(1, 50), lambda: answer(results))

        def timed_out() -> None:
            answer(tuple((one, ErrorCode.REQUEST_TIMED_OUT) for one in partitions_of(message)))

        for _ in range(0 if self.chance(0.1) else 2 if self.chance(0.1) else 1):
            late_ms = self.random.randint(1, STORE_TIMEOUT_MS - 100) if self.chance(0.2) else 10
            self.later(late_ms, arrive)
        self.later(STORE_TIMEOUT_MS, timed_out)

    def done(self, message: InitializeShareState | DeleteShareState, partition: Partition) -> ErrorCode:
        """As a share coordinator does it."""
        if partition[0] not in self.image.topic_names_by_id:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(message, DeleteShareState):
            self.begun.pop(partition, None)
            self.in_use.discard(partition)
            return ErrorCode.NONE
        known = self.begun.get(partition, -1)
        if known > message.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if known < message.state_epoch:
            is_first = dict(message.start_offsets)[partition] == -1
            must(not (is_first and partition in self.in_use), f"{partition} begins anew under its readers")
            self.begun[partition] = message.state_epoch
            self.in_use.discard(partition)
        return ErrorCode.NONE

    # ------------------------------------------------------------ faults

    def step(self, command: Command) -> None:
        # Not that of consumer groups, which looks at who takes an instance over.
        GroupWorld.step(self, command)

    def change_topics(self) -> None:
        before = dict(self.image.topics)
        super().change_topics()
        for name in before.keys() - self.image.topics.keys():
            gone = before[name].topic_id
            for partition in [one for one in self.begun if one[0] == gone]:
                del self.begun[partition]
                self.in_use.discard(partition)
            if self.machine is not None and self.random.random() < 0.7:
                self.step(ForgetTopic(name))

    def trouble(self) -> None:
        if self.faulty:
            self.administer()
        super().trouble()

    def administer(self) -> None:
        client, what = self.random.choice(self.clients), self.random.random()
        if what < 0.1:
            offset = self.random.randint(0, 99)
            self.send(client, lambda token: AlterShareOffsets(token, GROUP, (("t", ((0, offset),)),)), None)
        elif what < 0.15:
            self.send(client, lambda token: DeleteShareOffsets(token, GROUP, ("t", "u")), None)
        elif what < 0.2:
            self.send(client, lambda token: DeleteGroup(token, GROUP), None)
        elif what < 0.25 and self.machine is not None:
            self.step(ExpireOffsets())
        elif what < 0.3:
            for other in self.clients:
                if other.alive:
                    other.leave()

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        group = self.share_group()
        if group is not None:
            # It was to be deleted: whoever joins now begins anew, whatever has become of that.
            self.in_use = {one for one in self.in_use if one[0] not in group.states.deleting}
            for member_id in group.members:
                must(("share session", GROUP, member_id) in self.timers, f"{member_id} has no session timer")
        for asked in self.asked.values():
            must(self.now_ms - asked.since_ms < 6_000, f"waits too long: {asked}")
        if self.steps % 50 == 0:
            self.check_replay()

    def check_replay(self) -> None:
        GroupWorld.check_replay(self)

    def check_reply(self, command: Command, response: dict[str, object]) -> None:
        if not isinstance(command, ShareHeartbeat) or response["error_code"] is not ErrorCode.NONE:
            return
        stored = self.follow().share_groups.get(GROUP)
        if command.member_epoch == LEAVING:
            gone = stored is None or command.member_id not in stored.members
            must(gone, f"{command.member_id} was told that it is out, and is a member")
            return
        epoch = int(response["member_epoch"])  # type: ignore[call-overload]
        told = stored is not None and stored.epoch >= epoch
        must(told or not self.is_current(command), f"epoch {epoch} was told before it was replicated")
        if command.member_epoch > 0:
            must(epoch >= command.member_epoch, f"epoch {epoch} was told after {command.member_epoch}")
        if response["assignment"] is not None and self.is_current(command):
            for partition in assigned(response):
                if partition[0] in self.image.topic_names_by_id:
                    must(partition in self.begun, f"{partition} is assigned, and has no state")
                    self.in_use.add(partition)

    def is_current(self, command: ShareHeartbeat) -> bool:
        """Is the group still the one of this heartbeat?"""
        group = self.share_group()
        return group is not None and command.member_id in group.members

    def follow(self) -> DurableGroups:
        """What the replicated log says."""
        for offset in range(self.followed, self.replicated):
            self.follower.apply(*self.log[offset], offset)
        self.followed = self.replicated
        return self.follower

    def check_settled(self) -> None:
        group = self.share_group()
        assert group is not None and self.machine is not None
        must(not self.asked, f"unanswered in the end: {list(self.asked.values())}")
        there = self.image.topic_names_by_id
        wanted = [there.get(topic_id) for topic_id in group.states.initializing]
        must(not set(wanted) & set(group.subscribed()), f"still to begin: {wanted}")
        everything = {
            (topic.topic_id, index)
            for name, topic in self.image.topics.items()
            for index in range(len(topic.partitions))
            if name in group.subscribed()
        }
        fetched: list[Partition] = []
        for client in self.clients:
            assert isinstance(client, ShareClient)
            must(client.member_id in group.members, f"{client.name} is no member in the end")
            must(client.reads == group.target_of(client.member_id), f"{client.name} fetches {client.reads}")
            reads_any = any(name in self.image.topics for name in client.topics)
            must(bool(client.reads) or not reads_any, f"{client.name} has nothing to fetch")
            fetched += client.reads
        must(set(fetched) == everything, f"fetched in the end: {sorted(set(fetched))}")
        must(everything <= self.begun.keys(), "something is fetched and has no state")
        if len({client.topics for client in self.clients}) == 1:  # type: ignore[attr-defined]
            most = max(fetched.count(partition) for partition in everything)
            sharing = -(-len(self.clients) // len(everything))
            must(most == sharing, f"a partition has {most} readers, not {sharing}")


def partitions_of(message: InitializeShareState | DeleteShareState) -> list[Partition]:
    if isinstance(message, DeleteShareState):
        return list(message.partitions)
    return [partition for partition, _ in message.start_offsets]


def assigned(response: dict[str, object]) -> frozenset[Partition]:
    topics = response["assignment"]["topic_partitions"]  # type: ignore[index]
    return frozenset((topic["topic_id"], index) for topic in topics for index in topic["partitions"])

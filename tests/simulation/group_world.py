"""A world in one thread and from one seed: members, a network, a log, one group coordinator, all unreliable.

Messages are lost, late and doubled, members crash, go silent and come back, appends are refused or replicated
late, the coordinator crashes (the unreplicated tail of the log is gone) or resigns, timers fire late. After
every step `GroupWorld.check` looks at what must hold; a `Broken` says what did not. After the faults end
everything must settle.
"""

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.groups.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    ExpireOffsets,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    SyncGroup,
    TimerFired,
)
from tidelog.groups.machine import GroupMachine
from tidelog.groups.schemas import (
    group_metadata_key,
    offset_commit_key,
    read_group_metadata_value,
    read_offset_commit_value,
)
from tidelog.groups.settings import GroupSettings
from tidelog.groups.states import GroupState
from tidelog.model.effects import Append, CancelTimer, Effect, Reply, Send, SetTimer
from tidelog.model.errors import ErrorCode

GROUP = "orders"
GROUP_KEY = group_metadata_key(GROUP)
TOPIC = "t"
PARTITION_COUNT = 6
SESSION_MS = 3_000
REBALANCE_MS = 4_000
SETTINGS = GroupSettings(
    group_min_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=500,
    new_member_join_timeout_ms=8_000,
)
FAULTS_MS = 16_000
SETTLE_MS = 20_000
PARKED_MAX_MS = 30_000
"""No request may wait longer: rebalance and session timeouts and retried appends add up to less."""
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
)


class Broken(AssertionError):
    """Something that must hold did not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass
class Asked:
    """A request the coordinator has received and not answered."""

    command: Command
    since_ms: int
    answer: Callable[[dict[str, object]], None]


class Client:
    """A consumer as simple as can be: join, sync, heartbeat, commit; eager: a rebalance takes all away."""

    metadata = b"\x00\x00\x00\x00\x00\x01\x00\x01t"

    def __init__(self, world: "GroupWorld", name: str, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.alive = False
        self.epoch = 0
        """Grows whenever the client gives up on what it was doing; answers to older epochs are not for it."""
        self.silent_until_ms = 0
        self.owned: tuple[int, ...] = ()
        self.position = 0

    def assignments(self, members: list[str]) -> tuple[tuple[str, bytes], ...]:
        """The leader's work: who gets what, in bytes the coordinator does not look into."""
        parts: dict[str, list[int]] = {member: [] for member in members}
        for partition in range(PARTITION_COUNT):
            parts[members[partition % len(members)]].append(partition)
        return tuple((member, bytes(owned)) for member, owned in parts.items())

    def partitions(self, assignment: bytes) -> tuple[int, ...]:
        return tuple(assignment)

    def start(self) -> None:
        self.alive = True
        self.member_id = ""
        self.join()

    def stop(self) -> None:
        self.alive = False
        self.epoch += 1
        self.owned = ()

    def leave(self) -> None:
        if self.member_id:
            members = (LeavingMember(self.member_id, self.instance_id),)
            self.world.send(self, lambda token: LeaveGroup(token, GROUP, members), None)
        self.stop()

    def join(self) -> None:
        self.epoch += 1
        self.owned = ()
        self.generation = -1
        suffix = f"{self.world.random.getrandbits(32):08x}"

        def command(token: int) -> JoinGroup:
            return JoinGroup(
                token,
                GROUP,
                self.member_id,
                self.instance_id,
                self.name,
                "/sim",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                (("range", self.metadata),),
                suffix,
            )

        self.ask(command, self.joined, REBALANCE_MS * 2)

    def ask(
        self, command: Callable[[int], Command], then: Callable[[dict[str, object]], None], ms: int
    ) -> None:
        """Send and wait; without an answer in time, join again."""
        epoch = self.epoch

        def answered(response: dict[str, object]) -> None:
            if self.epoch == epoch:
                then(response)

        def timed_out() -> None:
            if self.epoch == epoch and self.alive and not answered_once:
                self.join()

        answered_once: list[bool] = []

        def answered_and_noted(response: dict[str, object]) -> None:
            answered_once.append(True)
            answered(response)

        self.world.send(self, command, answered_and_noted)
        self.world.later(ms, timed_out)

    def joined(self, response: dict[str, object]) -> None:
        error = response["error_code"]
        if error is ErrorCode.NONE:
            self.member_id = str(response["member_id"])
            self.generation = int(response["generation_id"])  # type: ignore[call-overload]
            self.sync(response)
        elif error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = str(response["member_id"])
            self.join()
        else:
            self.recover(error)

    def recover(self, error: object) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id = "" if error is not ErrorCode.ILLEGAL_GENERATION else self.member_id
        self.epoch += 1
        self.owned = ()
        epoch = self.epoch
        self.world.later(100, lambda: self.join() if self.alive and self.epoch == epoch else None)

    def sync(self, response: dict[str, object]) -> None:
        members = [str(member["member_id"]) for member in response["members"]]  # type: ignore[attr-defined]
        assignments: tuple[tuple[str, bytes], ...] = ()
        if members and not response["skip_assignment"]:
            assignments = self.assignments(members)
        generation, member_id = self.generation, self.member_id

        def command(token: int) -> SyncGroup:
            return SyncGroup(
                token, GROUP, member_id, self.instance_id, generation, "consumer", "range", assignments
            )

        self.ask(command, self.synced, REBALANCE_MS * 2)

    def synced(self, response: dict[str, object]) -> None:
        if response["error_code"] is not ErrorCode.NONE:
            self.recover(response["error_code"])
            return
        self.owned = self.partitions(bytes(response["assignment"]))  # type: ignore[call-overload]
        self.work()

    def work(self) -> None:
        """Heartbeat, and now and then commit or read what is committed."""
        epoch = self.epoch
        if not self.alive:
            return
        self.ask(
            lambda token: Heartbeat(token, GROUP, self.member_id, self.instance_id, self.generation),
            self.beat,
            1_500,
        )
        chance = self.world.random.random()
        if self.owned and chance < 0.6:
            self.commit()
        elif chance < 0.8:
            self.world.send(self, lambda token: FetchOffsets(token, GROUP, None), None)
        elif self.world.chance(0.5):
            self.wake_old_self()
        self.world.later(800, lambda: self.work() if self.alive and self.epoch == epoch else None)

    def wake_old_self(self) -> None:
        """A part of the client that has slept through a rebalance sends what it had to send."""
        member_id, generation = self.member_id, self.generation - 1
        self.world.send(
            self,
            lambda token: SyncGroup(token, GROUP, member_id, self.instance_id, generation, None, None, ()),
            None,
        )

    def beat(self, response: dict[str, object]) -> None:
        error = response["error_code"]
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
        elif error is not ErrorCode.NONE:
            self.recover(error)

    def commit(self) -> None:
        self.position += 1
        offsets = tuple(
            OffsetToCommit(TOPIC, partition, self.world.next_offset()) for partition in self.owned
        )
        member_id, generation = self.member_id, self.generation
        self.world.send(
            self,
            lambda token: CommitOffsets(token, GROUP, member_id, self.instance_id, generation, offsets),
            None,
        )


class GroupWorld:
    """The seed decides everything."""

    prompt: tuple[type, ...] = (CommitOffsets, FetchOffsets, LeaveGroup, Heartbeat, DeleteGroup)
    """What is answered at once where no append is on its way."""

    def __init__(self, seed: int, client_count: int = 5) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.started_ms = self.now_ms
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._offset = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.batch_ends: list[int] = []
        self.replicated = 0
        self.faulty = True
        self.trace = hashlib.sha256()
        self.steps = 0
        self.machine: GroupMachine | None = None
        self.timers: dict[object, tuple[int, int]] = {}
        self.asked: dict[int, Asked] = {}
        self.in_flight: list[tuple[int, int]] = []
        self._token = 0
        self._step_command: Command | None = None
        self._members_before: tuple[str, ...] = ()
        self.owners: dict[tuple[int, int], str] = {}
        self.synced_generation = -1
        kinds = [None, None, "s0", None, "s1"]
        self.clients = [Client(self, f"c{index}", kinds[index % len(kinds)]) for index in range(client_count)]

    # ------------------------------------------------------------ time and network

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._serial, action))

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def chance(self, probability: float) -> bool:
        return self.faulty and self.random.random() < probability

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
        for _ in range(2 if self.chance(0.04) else 1):
            delay_ms = self.random.randint(1, 2_500) if self.chance(0.05) else self.random.randint(1, 20)
            self.later(delay_ms, lambda: self.receive(command, answer))

    # ------------------------------------------------------------ the coordinator's side

    def receive(self, command: Callable[[int], Command], answer: Callable[[dict[str, object]], None]) -> None:
        if self.machine is None:
            return  # no coordinator: the connection is refused, the client's timeout goes on
        self._token += 1
        built = command(self._token)
        self.asked[self._token] = Asked(built, self.now_ms, answer)
        self.step(built)

    def step(self, command: Command) -> None:
        assert self.machine is not None
        group = self.machine.groups.get(GROUP)
        self._members_before = tuple(group.members) if group is not None else ()
        self._step_command = command
        self.note(f"{self.now_ms} {command!r}")
        self.run(self.machine.handle(command, self.now_ms))
        if not isinstance(command, self.prompt):
            return
        assert isinstance(command, CommitOffsets | FetchOffsets | LeaveGroup | Heartbeat | DeleteGroup)
        if not self.in_flight:
            must(command.token not in self.asked, f"{type(command).__name__} not answered at once")

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.reply(effect)
            elif isinstance(effect, SetTimer):
                self._serial += 1
                skew_ms = self.random.randint(0, 60) if self.faulty else 0
                due_ms = max(self.now_ms, effect.deadline_ms) + skew_ms
                self.timers[effect.key] = (due_ms, self._serial)
                heapq.heappush(self._events, (due_ms, self._serial, self._timer(effect.key, self._serial)))
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Append):
                self.append(effect)
            elif isinstance(effect, Send):
                self.carry(effect.message)

    def carry(self, message: object) -> None:
        """Groups of these protocols ask nobody else."""
        raise Broken(f"sent {message}")

    def _timer(self, key: object, serial: int) -> Callable[[], None]:
        def fire() -> None:
            if self.timers.get(key, (0, 0))[1] == serial and self.machine is not None:
                del self.timers[key]
                self.step(TimerFired(key))

        return fire

    def append(self, effect: Append) -> None:
        machine = self.machine
        assert machine is not None
        if self.chance(0.12):
            code = self.random.choice(REFUSALS)
            self.note(f"refused {code!r}")
            self.run(machine.append_refused(effect.token, code, self.now_ms))
            group = machine.groups.get(GROUP)
            members = tuple(group.members) if group is not None else ()
            must(sorted(members) == sorted(self._members_before), "a refused append changed the membership")
            return
        if isinstance(self._step_command, CommitOffsets) and self._step_command.generation >= 0:
            generation = self._step_command.generation
            must(
                generation >= self.synced_generation,
                f"a commit of generation {generation} after {self.synced_generation} synced",
            )
        if (GROUP_KEY, None) in effect.records:
            # A deleted group that comes back counts its generations anew.
            self.owners.clear()
            self.synced_generation = -1
        base_offset = len(self.log)
        self.log.extend(effect.records)
        self.batch_ends.append(len(self.log))
        self.run(machine.wrote(effect.token, base_offset, self.now_ms))
        self.in_flight.append((effect.token, len(self.log)))
        if self.in_flight[:-1] or self.chance(0.3):
            self.later(self.random.randint(5, 300), self.replicate)
            if self.chance(0.2):
                self.later(self.random.randint(5, 200), lambda: self.give_up(machine, effect.token))
        else:
            self.replicate()

    def replicate(self) -> None:
        self.replicated = len(self.log)
        while self.in_flight and self.machine is not None:
            token, _ = self.in_flight.pop(0)
            self.run(self.machine.appended(token, self.now_ms))

    def give_up(self, machine: GroupMachine, token: int) -> None:
        if self.machine is machine and any(token == waiting for waiting, _ in self.in_flight):
            self.note(f"append {token} timed out")
            self.run(machine.append_refused(token, ErrorCode.REQUEST_TIMED_OUT, self.now_ms))

    def reply(self, effect: Reply) -> None:
        asked = self.asked.pop(effect.token, None)
        must(asked is not None, f"token {effect.token} answered twice: {effect.response}")
        assert asked is not None
        self.note(f"reply {effect.token} {effect.response!r}")
        self.check_reply(asked.command, dict(effect.response))
        asked.answer(dict(effect.response))

    # ------------------------------------------------------------ faults

    def crash(self) -> None:
        """Lose the coordinator and whatever was not replicated; another comes up from the log."""
        self.note("crash")
        self.machine = None
        self.timers.clear()
        self.in_flight.clear()
        self.asked.clear()
        # A batch is there as a whole or not at all.
        ends = [self.replicated, *(end for end in self.batch_ends if end > self.replicated)]
        del self.log[self.random.choice(ends) :]
        self.batch_ends.clear()
        self.replicated = len(self.log)
        self.later(self.random.randint(10, 1_500), self.elect)

    def resign(self) -> None:
        if self.machine is None:
            return
        self.note("resign")
        machine, self.machine = self.machine, None
        self.timers.clear()
        self.in_flight.clear()
        self.replicated = len(self.log)
        for effect in machine.resign(self.now_ms):
            if isinstance(effect, Reply):
                self.reply(effect)
        must(not self.asked, f"left without an answer on resignation: {list(self.asked.values())}")
        self.later(self.random.randint(10, 500), self.elect)

    def new_machine(self) -> GroupMachine:
        return GroupMachine(0, SETTINGS)

    def elect(self) -> None:
        if self.machine is not None:
            return
        self.machine = self.new_machine()
        for offset, (key, value) in enumerate(self.log):
            self.machine.apply(key, value, offset)
        self.run(self.machine.loaded(self.now_ms))

    def trouble(self) -> None:
        """One random misfortune, and the next one planned."""
        if not self.faulty:
            return
        client = self.random.choice(self.clients)
        what = self.random.random()
        if what < 0.25:
            client.leave() if client.alive else client.start()
        elif what < 0.45:
            client.stop() if client.alive else client.start()
        elif what < 0.6:
            client.silent_until_ms = self.now_ms + self.random.randint(500, 6_000)
        elif what < 0.7:
            self.crash()
        elif what < 0.78:
            self.resign()
        elif what < 0.85 and self.machine is not None:
            self.step(ExpireOffsets())
        elif what < 0.9:
            self.send(client, lambda token: DeleteGroup(token, GROUP), None)
        elif what < 0.95:
            for other in self.clients:
                if other.alive:
                    other.leave()
        elif client.alive:
            client.join()
        self.later(self.random.randint(50, 1_200), self.trouble)

    # ------------------------------------------------------------ running and checking

    def note(self, text: str) -> None:
        self.trace.update(text.encode())

    def run_until(self, deadline_ms: int) -> None:
        while self._events and self._events[0][0] <= deadline_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
            self.steps += 1
            self.check()
        self.now_ms = deadline_ms

    def simulate(self) -> str:
        """Live through the faults, then a quiet time in which all must settle; return the trace's hash."""
        self.elect()
        for client in self.clients:
            self.later(self.random.randint(0, 2_000), client.start)
        self.later(1_000, self.trouble)
        self.run_until(self.started_ms + FAULTS_MS)
        self.faulty = False
        self.replicate()
        for client in self.clients:
            client.silent_until_ms = 0
            if not client.alive:
                client.start()
        self.run_until(self.now_ms + SETTLE_MS)
        self.check_replay()
        self.check_settled()
        return self.trace.hexdigest()

    def check(self) -> None:
        machine = self.machine
        if machine is None:
            return
        self.check_timers(machine)
        self.check_parked(machine)
        if self.steps % 50 == 0:
            self.check_replay()
        group = machine.groups.get(GROUP)
        if group is not None and group.is_in(GroupState.STABLE) and not self.in_flight:
            stored = machine.durable.groups.get(GROUP)
            must(stored is not None, "a stable group is not stored")
            assert stored is not None
            live = group.to_metadata({m.member_id: m.assignment for m in group.members.values()})
            as_stored = (stored.generation, stored.leader, stored.protocol, stored.members)
            as_living = (live.generation, live.leader, live.protocol, live.members)
            if as_stored != as_living:
                raise Broken(f"stored {as_stored} but lives {as_living}")

    def check_timers(self, machine: GroupMachine) -> None:
        """Liveness: whatever waits has a timer that will end the waiting."""
        for group in machine.groups.values():
            if group.is_in(GroupState.DEAD):
                continue
            for member_id in [*group.members, *group.pending_join_members]:
                if ("session", group.group_id, member_id) not in self.timers:
                    raise Broken(f"{member_id} of {group!r} has no session timer")
            if group.is_in(GroupState.PREPARING_REBALANCE):
                must(("join", group.group_id, "") in self.timers, f"{group!r} has no join timer")
            if group.is_in(GroupState.COMPLETING_REBALANCE) and group.must_sync_count:
                must(("sync", group.group_id, "") in self.timers, f"{group!r} has no sync timer")

    def check_parked(self, machine: GroupMachine) -> None:
        """Every waiting request has somebody who will answer it, in a state where that can be, in time."""
        held = {}
        for group in machine.groups.values():
            for member in group.members.values():
                if member.awaiting_sync is not None:
                    must(group.is_in(GroupState.COMPLETING_REBALANCE), f"{member} awaits a sync in {group!r}")
                    held[member.awaiting_sync] = member
                if member.awaiting_join is not None:
                    if not group.is_in(GroupState.PREPARING_REBALANCE) and not self.in_flight:
                        raise Broken(f"{member} awaits a join in {group!r}")
                    held[member.awaiting_join] = member
        for token, asked in self.asked.items():
            limit_ms = REBALANCE_MS + 1_500 if isinstance(asked.command, SyncGroup) else PARKED_MAX_MS
            if self.now_ms - asked.since_ms > limit_ms:
                raise Broken(f"waits too long: {asked}")
            if token not in held and not self.in_flight:
                raise Broken(f"nobody will answer {asked}")

    def check_replay(self) -> None:
        if self.machine is None:
            return
        replayed = self.new_machine()
        for offset, (key, value) in enumerate(self.log):
            replayed.apply(key, value, offset)
        must(
            replayed.durable.comparable() == self.machine.durable.comparable(),
            "the replayed log is not the living state",
        )

    def check_reply(self, command: Command, response: dict[str, object]) -> None:
        if isinstance(command, SyncGroup) and response["error_code"] is ErrorCode.NONE:
            group = self.machine.groups[GROUP] if self.machine is not None else None
            must(group is None or group.generation == command.generation, "a sync of an old generation")
            self.check_assignment(command, bytes(response["assignment"]))  # type: ignore[call-overload]
        elif isinstance(command, CommitOffsets):
            self.check_commit(command, response)
        elif isinstance(command, FetchOffsets) and response["error_code"] is ErrorCode.NONE:
            for topic in response["topics"]:  # type: ignore[attr-defined]
                for part in topic["partitions"]:
                    self.check_replicated(part["partition_index"], part["committed_offset"], "read")

    def check_assignment(self, command: SyncGroup, assignment: bytes) -> None:
        """One owner per partition and generation, and none whose assignment could be forgotten."""
        identity = command.group_instance_id or command.member_id
        for partition in assignment:
            owner = self.owners.setdefault((command.generation, partition), identity)
            must(owner == identity, f"{TOPIC}-{partition} has {owner} and {identity} in {command.generation}")
        self.synced_generation = max(self.synced_generation, command.generation)
        stored = next(
            (value for key, value in reversed(self.log[: self.replicated]) if key == GROUP_KEY), None
        )
        must(
            stored is not None and read_group_metadata_value(stored).generation >= command.generation,
            "an assignment was given out before it was replicated",
        )

    def check_commit(self, command: CommitOffsets, response: dict[str, object]) -> None:
        for topic in response["topics"]:  # type: ignore[attr-defined]
            for part in topic["partitions"]:
                if part["error_code"] is not ErrorCode.NONE:
                    continue
                offset = next(o.offset for o in command.offsets if o.partition == part["partition_index"])
                self.check_replicated(part["partition_index"], offset, "acknowledged")

    def check_replicated(self, partition: int, offset: int, what: str) -> None:
        key = offset_commit_key(GROUP, TOPIC, partition)
        for logged_key, value in reversed(self.log[: self.replicated]):
            if logged_key == key and value is not None and read_offset_commit_value(value).offset == offset:
                return
        raise Broken(f"offset {offset} of {TOPIC}-{partition} was {what} but is not replicated")

    def check_settled(self) -> None:
        assert self.machine is not None
        group = self.machine.groups.get(GROUP)
        must(group is not None and group.is_in(GroupState.STABLE), f"not settled: {group!r}")
        owned = sorted(partition for client in self.clients for partition in client.owned)
        must(owned == list(range(PARTITION_COUNT)), f"partitions owned in the end: {owned}")
        must(not self.asked, f"unanswered in the end: {list(self.asked.values())}")

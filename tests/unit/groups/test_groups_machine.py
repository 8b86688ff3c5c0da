"""The group machine by hand: one command after another, against a log that takes all unless told not to."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from tidelog.groups.classic_group import ClassicGroup
from tidelog.groups.commands import (
    NO_RETENTION,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    FetchOffsets,
    ForgetTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    SyncGroup,
    TimerFired,
)
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.groups.states import GroupState, mermaid
from tidelog.model.effects import Append, CancelTimer, Effect, Reply, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_ID

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t"
SETTINGS = GroupSettings(offsets_retention_ms=1_000, group_initial_rebalance_delay_ms=100)


class Desk:
    """Runs a machine's effects against a list as the log; `refuse` makes every append fail."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.machine = GroupMachine(0, settings)
        self.machine.loaded(0)
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[Any, int] = {}
        self.answers: dict[int, Any] = {}
        self.refuse: ErrorCode | None = None
        self.token = 0
        self.events: list[tuple[str, str]] = []

    def ask(self, kind: type, *args: Any, **kwargs: Any) -> int:
        self.token += 1
        self.do(kind(self.token, *args, **kwargs))
        return self.token

    def answer(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        return self.answers[self.ask(kind, *args, **kwargs)]

    def do(self, command: Command) -> None:
        self.run(self.machine.handle(command, self.now_ms))

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.answers
                self.answers[effect.token] = effect.response
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.deadline_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Append):
                self.append(effect)
            elif isinstance(effect, TellEvent):
                self.events.append((effect.kind, effect.cause))

    def append(self, effect: Append) -> None:
        if self.refuse is not None:
            self.run(self.machine.append_refused(effect.token, self.refuse, self.now_ms))
            return
        base_offset = len(self.log)
        self.log += effect.records
        self.run(self.machine.wrote(effect.token, base_offset, self.now_ms))
        self.run(self.machine.appended(effect.token, self.now_ms))

    def pass_time(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while self.timers and min(self.timers.values()) <= end_ms:
            key = min(self.timers, key=self.timers.__getitem__)
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.do(TimerFired(key))
        self.now_ms = end_ms

    def join(self, member_id: str = "", **changes: Any) -> int:
        fields: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": (("range", SUBSCRIPTION),),
            "new_member_suffix": str(self.token),
        }
        return self.ask(JoinGroup, **{**fields, **changes})

    def sync(self, member_id: str, generation: int, assignments: Any = (), instance_id: Any = None) -> int:
        return self.ask(SyncGroup, "g", member_id, instance_id, generation, "consumer", "range", assignments)

    def stable(self, count: int = 1, **changes: Any) -> list[str]:
        """A stable group of new members."""
        tokens = [self.join(requires_known_member_id=False, **changes) for _ in range(count)]
        self.pass_time(300 if count > 1 else 100)
        ids = [self.answers[token]["member_id"] for token in tokens]
        generation = self.answers[tokens[0]]["generation_id"]
        for member_id in reversed(ids):
            self.sync(member_id, generation, tuple((m, m.encode()) for m in ids))
        assert self.group.is_in(GroupState.STABLE)
        return ids

    @property
    def group(self) -> Any:
        return self.machine.groups["g"]

    def commit(self, member_id: str = "", generation: int = -1, offset: int = 5, **more: Any) -> ErrorCode:
        offsets = (OffsetToCommit("t", 0, offset, 2, "note"),)
        answer = self.answer(CommitOffsets, "g", member_id, None, generation, offsets, **more)
        error: ErrorCode = answer["topics"][0]["partitions"][0]["error_code"]
        return error

    def committed(self, topic: str = "t") -> Any:
        answer = self.answer(FetchOffsets, "g", ((topic, (0,)),))
        return answer["topics"][0]["partitions"][0]

    def heartbeat(self, member_id: str, generation: int = 1, instance_id: Any = None) -> ErrorCode:
        error: ErrorCode = self.answer(Heartbeat, "g", member_id, instance_id, generation)["error_code"]
        return error


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_member_first_gets_an_id_then_joins_and_leads(desk: Desk) -> None:
    first = desk.answers[desk.join()]
    assert (first["error_code"], first["member_id"]) == (ErrorCode.MEMBER_ID_REQUIRED, "c-0")
    token = desk.join("c-0")
    assert token not in desk.answers
    desk.pass_time(100)
    answer = desk.answers[token]
    assert answer["error_code"] is ErrorCode.NONE
    assert (answer["generation_id"], answer["leader"], answer["protocol_name"]) == (1, "c-0", "range")
    assert [m["member_id"] for m in answer["members"]] == ["c-0"]
    synced = desk.answers[desk.sync("c-0", 1, (("c-0", b"all"),))]
    assert (synced["error_code"], synced["assignment"]) == (ErrorCode.NONE, b"all")
    assert desk.group.is_in(GroupState.STABLE)
    assert desk.heartbeat("c-0") is ErrorCode.NONE


def test_an_id_that_is_not_used_is_taken_back(desk: Desk) -> None:
    desk.join()
    desk.pass_time(10_000)
    assert not desk.group.pending_join_members
    assert desk.answers[desk.join("c-0")]["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 10**9}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_are_refused(desk: Desk, changes: dict[str, Any], error: ErrorCode) -> None:
    assert desk.answers[desk.join(**changes)]["error_code"] is error


def test_the_initial_rebalance_waits_while_members_come(desk: Desk) -> None:
    first = desk.join(requires_known_member_id=False)
    desk.pass_time(90)
    second = desk.join(requires_known_member_id=False)
    desk.pass_time(20)
    assert first not in desk.answers
    desk.pass_time(90)
    assert desk.answers[first]["generation_id"] == desk.answers[second]["generation_id"] == 1
    assert len(desk.answers[first]["members"]) == 2
    assert desk.answers[second]["members"] == ()


def test_a_new_member_rebalances_the_others(desk: Desk) -> None:
    (old,) = desk.stable()
    new = desk.join(requires_known_member_id=False)
    assert desk.heartbeat(old) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.commit(old, 1) is ErrorCode.NONE, "the old generation may commit until the new one is there"
    again = desk.join(old)
    assert desk.answers[again]["generation_id"] == desk.answers[new]["generation_id"] == 2
    assert desk.commit(old, 1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.commit(old, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_are_out(desk: Desk) -> None:
    first, second = desk.stable(2)
    token = desk.join(first, protocols=(("range", SUBSCRIPTION + b"!"),))
    desk.pass_time(10_300)
    assert list(desk.group.members) == [first]
    assert desk.answers[token]["generation_id"] == 2
    assert desk.heartbeat(second, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_the_last_leaves_an_empty_group(desk: Desk) -> None:
    desk.stable()
    desk.pass_time(10_001)
    assert desk.group.is_in(GroupState.EMPTY)
    assert desk.machine.durable.groups["g"].members == ()
    assert desk.machine.durable.groups["g"].generation == 2


def test_members_that_never_sync_are_removed(desk: Desk) -> None:
    token = desk.join(requires_known_member_id=False)
    desk.pass_time(100)
    member_id = desk.answers[token]["member_id"]
    for _ in range(4):
        desk.pass_time(5_000)
        desk.heartbeat(member_id)
    desk.pass_time(1_000)
    assert desk.group.is_in(GroupState.EMPTY)


def test_protocols_are_chosen_by_vote_among_common_ones(desk: Desk) -> None:
    a, b, c = (("a", b""),), (("b", b""),), (("c", b""),)
    for protocols in (a + b + c, b + c, c + b):
        token = desk.join(requires_known_member_id=False, protocols=protocols, protocol_type="connect")
    desk.pass_time(300)
    assert desk.answers[token]["protocol_name"] == "b"
    refused = desk.join(requires_known_member_id=False, protocols=a, protocol_type="connect")
    assert desk.answers[refused]["error_code"] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_group_has_a_largest_size() -> None:
    desk = Desk(GroupSettings(group_max_size=1, group_initial_rebalance_delay_ms=0))
    desk.stable()
    token = desk.join(requires_known_member_id=False)
    assert desk.answers[token]["error_code"] is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_sync_checks_generation_and_protocol(desk: Desk) -> None:
    (member,) = desk.stable()
    assert desk.answers[desk.sync(member, 7)]["error_code"] is ErrorCode.ILLEGAL_GENERATION
    assert desk.answers[desk.sync("x", 1)]["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = desk.answer(SyncGroup, "g", member, None, 1, "connect", "range", ())
    assert wrong["error_code"] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# ---------------------------------------------------------------- static members


def test_a_static_member_returns_without_a_rebalance_and_fences_its_old_self(desk: Desk) -> None:
    (old,) = desk.stable(group_instance_id="i")
    answer = desk.answers[desk.join(group_instance_id="i")]
    new = answer["member_id"]
    assert (answer["generation_id"], answer["skip_assignment"]) == (1, True)
    assert [m["member_id"] for m in answer["members"]] == [new] != [old]
    assert desk.heartbeat(old, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert desk.heartbeat(new, instance_id="i") is ErrorCode.NONE
    assert desk.answers[desk.sync(new, 1, instance_id="i")]["assignment"] == old.encode()
    assert desk.machine.durable.groups["g"].members[0].member_id == new


def test_before_v9_a_returned_static_leader_is_named_its_old_id(desk: Desk) -> None:
    (old,) = desk.stable(group_instance_id="i")
    answer = desk.answers[desk.join(group_instance_id="i", supports_skipping_assignment=False)]
    assert (answer["leader"], answer["members"], answer["skip_assignment"]) == (old, (), False)


def test_a_static_return_that_cannot_be_stored_changes_nothing(desk: Desk) -> None:
    (old,) = desk.stable(group_instance_id="i")
    desk.refuse = ErrorCode.NOT_LEADER_OR_FOLLOWER
    answer = desk.answers[desk.join(group_instance_id="i")]
    assert answer["error_code"] is ErrorCode.NOT_COORDINATOR
    assert desk.heartbeat(old, instance_id="i") is ErrorCode.NONE


# ---------------------------------------------------------------- leaving


def test_members_leave_in_batches_each_with_its_own_error(desk: Desk) -> None:
    (member,) = desk.stable(group_instance_id="i")
    leaving = (LeavingMember("", "i"), LeavingMember("nobody"), LeavingMember("", "j"))
    answer = desk.answer(LeaveGroup, "g", leaving)
    errors = [m["error_code"] for m in answer["members"]]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert member not in desk.group.members
    assert desk.group.is_in(GroupState.EMPTY)
    assert desk.answer(LeaveGroup, "h", (LeavingMember("x"),))["members"][0]["error_code"] is (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_the_last_leave_that_cannot_be_stored_has_not_happened(desk: Desk) -> None:
    (member,) = desk.stable()
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    assert answer["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.heartbeat(member) is ErrorCode.NONE
    assert ("session", "g", member) in desk.timers


def test_an_expiry_that_cannot_be_stored_is_tried_again(desk: Desk) -> None:
    desk.stable()
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    desk.pass_time(10_050)
    assert desk.group.is_in(GroupState.STABLE)
    desk.refuse = None
    desk.pass_time(600)
    assert desk.group.is_in(GroupState.EMPTY)


def test_an_assignment_that_cannot_be_stored_starts_over(desk: Desk) -> None:
    token = desk.join(requires_known_member_id=False)
    desk.pass_time(100)
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = desk.answers[desk.sync(desk.answers[token]["member_id"], 1)]
    assert answer["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.group.is_in(GroupState.PREPARING_REBALANCE)


# ---------------------------------------------------------------- offsets


def test_a_simple_commit_makes_a_simple_group(desk: Desk) -> None:
    assert desk.commit() is ErrorCode.NONE
    assert desk.committed() == {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": 2,
        "metadata": "note",
        "error_code": ErrorCode.NONE,
    }
    assert desk.machine.list_groups(frozenset(), frozenset()) == [
        {"group_id": "g", "protocol_type": "", "group_state": "Empty", "group_type": "classic"}
    ]
    assert desk.answer(FetchOffsets, "g", None)["topics"][0]["name"] == "t"


def test_who_may_commit(desk: Desk) -> None:
    assert desk.commit("m", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.commit("m", 1, api_version=8) is ErrorCode.ILLEGAL_GENERATION
    (member,) = desk.stable()
    assert desk.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit("other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit(member, 1) is ErrorCode.NONE


def test_unknown_groups_and_partitions_have_offset_minus_one_and_no_error(desk: Desk) -> None:
    assert desk.committed()["committed_offset"] == -1
    assert desk.committed()["error_code"] is ErrorCode.NONE


def test_a_refused_commit_is_not_seen(desk: Desk) -> None:
    desk.commit(offset=5)
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert desk.commit(offset=9) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.committed()["committed_offset"] == 5


def test_long_metadata_is_refused_alone(desk: Desk) -> None:
    offsets = (OffsetToCommit("t", 0, 1, metadata="x" * 5_000), OffsetToCommit("t", 1, 1))
    answer = desk.answer(CommitOffsets, "g", "", None, -1, offsets)
    errors = [part["error_code"] for part in answer["topics"][0]["partitions"]]
    assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


def test_offsets_of_subscribed_topics_cannot_be_deleted(desk: Desk) -> None:
    (member,) = desk.stable()
    desk.commit(member, 1)
    answer = desk.answer(DeleteOffsets, "g", (("t", (0,)), ("u", (0,))))
    errors = [topic["partitions"][0]["error_code"] for topic in answer["topics"]]
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    desk.answer(DeleteOffsets, "g", (("t", (0,)),))
    assert desk.committed()["committed_offset"] == -1
    assert desk.answer(DeleteOffsets, "h", ())["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_deleted_when_empty(desk: Desk) -> None:
    (member,) = desk.stable()
    desk.commit(member, 1)
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NON_EMPTY_GROUP
    desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NONE
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.machine.durable.comparable() == ({}, {}, {}, {}, {})
    assert not desk.machine.groups


def test_offsets_expire_after_the_group_became_empty(desk: Desk) -> None:
    (member,) = desk.stable()
    desk.commit(member, 1)
    desk.now_ms += 5_000
    desk.do(ExpireOffsets())
    assert desk.committed()["committed_offset"] == 5, "a subscribed topic's offsets stay"
    desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    desk.now_ms += 999
    desk.do(ExpireOffsets())
    assert desk.committed()["committed_offset"] == 5
    desk.now_ms += 1
    desk.do(ExpireOffsets())
    assert not desk.machine.groups


def test_an_old_clients_own_retention_counts(desk: Desk) -> None:
    desk.commit(retention_ms=10)
    desk.now_ms += 10
    desk.do(ExpireOffsets())
    assert not desk.machine.groups


def test_deleted_topics_lose_their_offsets(desk: Desk) -> None:
    desk.commit()
    desk.do(ForgetTopic("t"))
    assert desk.committed()["committed_offset"] == -1


def test_transactional_offsets_wait_for_their_marker(desk: Desk) -> None:
    desk.commit(offset=5)
    key, value = desk.log[0]
    desk.machine.apply(key, value.replace(b"\x05", b"\x09", 1), 1, producer_id=77)  # type: ignore[union-attr]
    stable = desk.answer(FetchOffsets, "g", (("t", (0,)),), True)["topics"][0]["partitions"][0]
    assert (stable["error_code"], stable["committed_offset"]) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert desk.committed()["committed_offset"] == 5
    desk.machine.end_transaction(77, committed=True)
    assert desk.committed()["committed_offset"] == 9
    assert desk.machine.durable.comparable()[3] == {}


# ---------------------------------------------------------------- loading, resigning, looking


@pytest.mark.parametrize("producer_id", [NO_PRODUCER_ID, 7])
@pytest.mark.parametrize("retention_ms", [NO_RETENTION, 60_000])
def test_a_commit_counts_as_its_records_say(desk: Desk, retention_ms: int, producer_id: int) -> None:
    offsets = (
        OffsetToCommit("t", 0, 5, 2, "note"),
        OffsetToCommit("t", 1, 6, -1, None),
        OffsetToCommit("\N{SNOWMAN}", 0, 0, 0, "\N{SNOWMAN}"),
        OffsetToCommit("t", 0, 2**63 - 1, 2**31 - 1, "", 1_234),
    )
    more = {"retention_ms": retention_ms, "producer_id": producer_id, "producer_epoch": 0}
    desk.answer(CommitOffsets, "g", "", None, -1, offsets, **more)
    replayed = GroupMachine(0, SETTINGS)
    for offset, (key, value) in enumerate(desk.log):
        replayed.apply(key, value, offset, producer_id)
    replayed.loaded(desk.now_ms)
    assert len(desk.log) == len(offsets)
    assert replayed.durable.comparable() == desk.machine.durable.comparable()
    assert replayed.groups.keys() == desk.machine.groups.keys() == {"g"}


def test_a_replayed_log_is_the_same_group(desk: Desk) -> None:
    first, second = desk.stable(2)
    desk.commit(first, 1)
    other = Desk()
    other.machine = GroupMachine(0, SETTINGS)
    other.machine.apply(b"\x00\x09whatever", b"", 0)
    for offset, (key, value) in enumerate(desk.log):
        other.machine.apply(key, value, offset)
    other.run(other.machine.loaded(0))
    assert other.machine.durable.comparable() == desk.machine.durable.comparable()
    assert other.heartbeat(second) is ErrorCode.NONE
    assert other.answers[other.sync(first, 1)]["assignment"] == first.encode()
    assert sorted(other.timers) == sorted(("session", "g", member) for member in (first, second))


def test_whoever_waits_is_sent_elsewhere_on_resignation(desk: Desk) -> None:
    token = desk.join(requires_known_member_id=False)
    desk.run(desk.machine.resign(0))
    assert desk.answers[token]["error_code"] is ErrorCode.NOT_COORDINATOR


def test_describing(desk: Desk) -> None:
    (member,) = desk.stable()
    described = desk.machine.describe_group("g", missing_is_error=True)
    assert described["group_state"] == "Stable"
    assert described["protocol_data"] == "range"
    (only,) = described["members"]  # type: ignore[misc]
    assert (only["member_id"], only["member_metadata"]) == (member, SUBSCRIPTION)  # type: ignore[has-type]
    missing = desk.machine.describe_group("h", missing_is_error=False)
    assert (missing["error_code"], missing["group_state"]) == (ErrorCode.NONE, "Dead")
    assert (
        desk.machine.describe_group("h", missing_is_error=True)["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert desk.machine.list_groups(frozenset({"empty"}), frozenset()) == []
    assert len(desk.machine.list_groups(frozenset({"stable"}), frozenset({"classic"}))) == 1
    assert desk.machine.list_groups(frozenset(), frozenset({"share"})) == []


def test_a_refused_step_leaves_the_very_same_group(desk: Desk) -> None:
    (member,) = desk.stable()
    before = desk.group
    kept = before.copy()
    timers = dict(desk.timers)
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    assert answer["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.group is before
    assert all(getattr(before, name) == getattr(kept, name) for name in ClassicGroup.__slots__)
    assert desk.timers == timers and desk.events[-1] == ("group is stable", "the assignment is stored")
    desk.refuse = None
    desk.answer(LeaveGroup, "g", (LeavingMember(member),))
    assert desk.group is not before and not desk.group.members and before.members


def test_the_members_of_a_group_are_only_replaced(desk: Desk) -> None:
    (member,) = desk.stable()
    with pytest.raises(FrozenInstanceError):
        desk.group.members[member].awaiting_join = 1


def test_a_rebalance_says_why(desk: Desk) -> None:
    (member,) = desk.stable(reason="hello")
    desk.answer(LeaveGroup, "g", (LeavingMember(member, reason="shutting down"),))
    assert desk.events == [
        ("group rebalances", "c joins: hello"),
        ("group has a new generation", "the join phase is over"),
        ("group is stable", "the assignment is stored"),
        ("group rebalances", "1 members leave: shutting down"),
        ("group has a new generation", "1 members leave: shutting down"),
    ]


def test_the_documented_diagram_is_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "groups.md").read_text()
    assert mermaid() in page

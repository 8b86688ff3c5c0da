"""Share groups in the group machine: members, targets, state at share coordinators, offsets."""

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from tests.unit.groups.test_groups_machine import Desk
from tidelog.groups.commands import (
    AlterShareOffsets,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DeleteShareOffsets,
    DeleteShareState,
    FetchOffsets,
    ForgetTopic,
    InitializeShareState,
    JoinGroup,
    OffsetToCommit,
    ShareHeartbeat,
    ShareStateAnswered,
)
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.groups.share_group import ShareGroup
from tidelog.model.effects import Effect, Send
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage

ONE = PartitionImage(1, 0, (1,), (1,))
T, U = UUID(int=1), UUID(int=2)
SESSION_MS = 45_000


def image(version: int = 1, **counts: int) -> ClusterImage:
    ids = {"t": T, "u": U}
    topics = {name: TopicImage(name, ids[name], (ONE,) * count) for name, count in counts.items()}
    return ClusterImage(
        version=version, topics=topics, topic_names_by_id={ids[name]: name for name in counts}
    )


class ShareDesk(Desk):
    """Share coordinators answer at once, with `errors` where they are told to, unless they are silent."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        super().__init__(settings or GroupSettings())
        self.machine.observe(image(t=2))
        self.asked: list[InitializeShareState | DeleteShareState] = []
        self.errors: dict[Any, ErrorCode] = {}
        self.silent = False

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                super().run([effect])
                continue
            message = effect.message
            assert isinstance(message, InitializeShareState | DeleteShareState)
            self.asked.append(message)
            if not self.silent:
                self.settle(message)

    def settle(self, message: InitializeShareState | DeleteShareState) -> None:
        if isinstance(message, InitializeShareState):
            partitions = [partition for partition, _ in message.start_offsets]
        else:
            partitions = list(message.partitions)
        results = tuple((one, self.errors.get(one, ErrorCode.NONE)) for one in partitions)
        self.do(ShareStateAnswered(message.number, message.group_id, results))

    def beat(self, member: str, epoch: int, *topics: str, **more: Any) -> Any:
        names = topics if topics or epoch == 0 else None
        return self.answer(ShareHeartbeat, "g", member, epoch, "client", "/host", None, names, **more)

    def member(self, member: str, *topics: str) -> Any:
        """Join and come to rest; the last answer."""
        epoch = self.beat(member, 0, *(topics or ("t",)))["member_epoch"]
        for _ in range(3):
            answer = self.beat(member, epoch)
            epoch = answer["member_epoch"]
        return self.beat(member, epoch, *(topics or ("t",)))

    @property
    def group(self) -> ShareGroup:
        return self.machine.durable.share_groups["g"]

    def replayed(self) -> GroupMachine:
        machine = GroupMachine(0, GroupSettings())
        for offset, (key, value) in enumerate(self.log):
            machine.apply(key, value, offset)
        return machine


def partitions(answer: Any) -> list[int]:
    assert answer["error_code"] is ErrorCode.NONE
    return [index for topic in answer["assignment"]["topic_partitions"] for index in topic["partitions"]]


@pytest.fixture
def desk() -> ShareDesk:
    return ShareDesk()


def test_a_member_gets_partitions_once_share_coordinators_have_begun(desk: ShareDesk) -> None:
    first = desk.beat("a", 0, "t")
    assert (first["member_epoch"], partitions(first)) == (2, [])
    assert desk.asked == [InitializeShareState(1, "g", 2, (((T, 0), -1), ((T, 1), -1)))]
    second = desk.beat("a", 2)
    assert (second["member_epoch"], partitions(second)) == (3, [0, 1])
    assert desk.beat("a", 3)["assignment"] is None
    assert desk.group.state == "Stable"
    assert len(desk.asked) == 1


def test_many_members_share_few_partitions(desk: ShareDesk) -> None:
    for name in "abcdefgh":
        desk.member(name)
    shared = [partitions(desk.member(name)) for name in "abcdefgh"]
    assert sorted(index for one in shared for index in one) == [0] * 4 + [1] * 4


def test_a_member_that_missed_an_answer_is_told_again_what_it_is_assigned(desk: ShareDesk) -> None:
    desk.beat("a", 0, "t")
    assert partitions(desk.beat("a", 2)) == [0, 1]
    assert partitions(desk.beat("a", 2)) == [0, 1]
    assert desk.beat("a", 3)["assignment"] is None


def test_a_heartbeat_that_changes_nothing_writes_nothing(desk: ShareDesk) -> None:
    epoch = desk.member("a")["member_epoch"]
    size = len(desk.log)
    assert desk.beat("a", epoch)["member_epoch"] == epoch
    assert len(desk.log) == size


def test_state_that_was_not_begun_is_asked_for_again(desk: ShareDesk) -> None:
    desk.errors = {(T, 1): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    desk.beat("a", 0, "t")
    desk.errors = {}
    assert partitions(desk.beat("a", 2)) == [0]
    assert desk.asked[-1].start_offsets == (((T, 1), -1),)  # type: ignore[union-attr]
    assert partitions(desk.beat("a", 3)) == [0, 1]


def test_share_coordinators_that_are_silent_are_asked_again_after_a_while(desk: ShareDesk) -> None:
    desk.silent = True
    desk.beat("a", 0, "t")
    desk.beat("a", 2)
    assert len(desk.asked) == 1
    desk.now_ms += 30_000
    desk.silent = False
    desk.beat("a", 2)
    assert len(desk.asked) == 2
    assert partitions(desk.beat("a", 2)) == [0, 1]


def test_what_was_being_asked_for_is_asked_for_by_the_next_coordinator(desk: ShareDesk) -> None:
    desk.silent = True
    desk.beat("a", 0, "t")
    other = ShareDesk()
    other.log = list(desk.log)
    other.machine = desk.replayed()
    other.machine.observe(image(t=2))
    other.run(other.machine.loaded(0))
    assert ("share session", "g", "a") in other.timers
    other.beat("a", 2)
    assert [message.number for message in other.asked] == [1]
    assert partitions(other.beat("a", 2)) == [0, 1]


def test_topics_that_grow_and_appear_are_assigned(desk: ShareDesk) -> None:
    epoch = desk.member("a", "t", "u")["member_epoch"]
    desk.machine.observe(image(2, t=3, u=1))
    for _ in range(3):
        epoch = desk.beat("a", epoch)["member_epoch"]
    assert partitions(desk.beat("a", epoch, "t", "u")) == [0, 1, 2, 0]


def test_deleted_topics_are_forgotten(desk: ShareDesk) -> None:
    desk.machine.observe(image(t=2, u=1))
    epoch = desk.member("a", "t", "u")["member_epoch"]
    desk.machine.observe(image(2, t=2))
    desk.do(ForgetTopic("u"))
    assert set(desk.group.states.initialized) == {T}
    epoch = desk.beat("a", epoch)["member_epoch"]
    assert partitions(desk.beat("a", epoch, "t", "u")) == [0, 1]


def test_epochs_are_checked(desk: ShareDesk) -> None:
    epoch = desk.member("a")["member_epoch"]
    assert desk.beat("a", epoch - 1)["error_code"] is ErrorCode.NONE, "the answer may have been lost"
    assert desk.beat("a", epoch + 1)["error_code"] is ErrorCode.FENCED_MEMBER_EPOCH
    assert desk.beat("x", 3)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    desk.member("b")
    desk.member("c")
    desk.member("a")
    assert desk.beat("a", epoch - 1)["error_code"] is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("member", "epoch", "topics"),
    [("", 0, ("t",)), ("a", 0, ()), ("a", -2, ()), (" ", 3, ()), ("x" * 37, 0, ("t",))],
)
def test_requests_that_cannot_be_are_refused(
    desk: ShareDesk, member: str, epoch: int, topics: tuple[str, ...]
) -> None:
    assert desk.beat(member, epoch, *topics)["error_code"] is ErrorCode.INVALID_REQUEST


def test_groups_have_a_limit(desk: ShareDesk) -> None:
    desk = ShareDesk(GroupSettings(share_max_size=2))
    desk.member("a")
    desk.member("b")
    assert desk.beat("c", 0, "t")["error_code"] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.beat("b", 0, "t")["error_code"] is ErrorCode.NONE


def test_members_are_counted_in_bytes_too() -> None:
    desk = ShareDesk(GroupSettings(members_bytes_max=20_000))
    desk.member("a")
    many = tuple(f"topic-{number}" for number in range(500))
    assert desk.beat("b", 0, *many)["error_code"] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.machine.held_bytes() < 20_000


def test_members_leave_and_fall_silent(desk: ShareDesk) -> None:
    epoch = desk.member("a")["member_epoch"]
    desk.member("b")
    left = desk.beat("b", -1)
    assert (left["error_code"], left["member_epoch"]) == (ErrorCode.NONE, -1)
    assert desk.beat("b", -1)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(desk.group.members) == {"a"}
    assert desk.group.epoch > epoch
    desk.pass_time(SESSION_MS)
    assert desk.group.state == "Empty"
    assert desk.timers == {}


def test_a_refused_removal_is_tried_again(desk: ShareDesk) -> None:
    desk.member("a")
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    desk.pass_time(SESSION_MS)
    assert set(desk.group.members) == {"a"}
    desk.refuse = None
    desk.pass_time(500)
    assert desk.group.members == {}


def test_a_refused_heartbeat_changes_nothing(desk: ShareDesk) -> None:
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert desk.beat("a", 0, "t")["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.machine.durable.share_groups == {}
    assert (desk.timers, desk.asked) == ({}, [])
    desk.refuse = None
    assert partitions(desk.member("a")) == [0, 1]


def test_a_group_id_has_one_kind_of_group(desk: ShareDesk) -> None:
    desk.member("a")
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    consumer = desk.answer(
        ConsumerHeartbeat, "g", "x", 0, "c", "/h", rebalance_timeout_ms=9, subscribed_topic_names=("t",),
        owned=frozenset(),
    )  # fmt: skip
    assert consumer["error_code"] is not_found
    joined = desk.answer(JoinGroup, "g", "", None, "c", "/h", 10_000, 9, "consumer", (("range", b""),), "x")
    assert joined["error_code"] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    committed = desk.answer(CommitOffsets, "g", "", None, -1, (OffsetToCommit("t", 0, 1),))
    assert committed["topics"][0]["partitions"][0]["error_code"] is not_found
    fetched = desk.answer(FetchOffsets, "g", None)
    assert (fetched["error_code"], fetched["topics"]) == (ErrorCode.NONE, ()), "as of an unknown group"
    assert desk.answer(DeleteOffsets, "g", (("t", (0,)),))["error_code"] is not_found
    other = ShareDesk()
    other.answer(CommitOffsets, "g", "", None, -1, (OffsetToCommit("t", 0, 1),))
    assert other.beat("a", 0, "t")["error_code"] is not_found
    assert other.answer(AlterShareOffsets, "g", (("t", ((0, 5),)),))["error_code"] is not_found


def test_groups_are_listed_and_described(desk: ShareDesk) -> None:
    desk.member("a")
    nothing = frozenset[str]()
    [listed] = desk.machine.list_groups(nothing, frozenset({"share"}))
    assert (listed["group_type"], listed["group_state"], listed["protocol_type"]) == (
        "share", "Stable", "share",
    )  # fmt: skip
    assert desk.machine.list_groups(nothing, frozenset({"consumer"})) == []
    assert desk.machine.list_groups(frozenset({"empty"}), nothing) == []
    described: Any = desk.machine.describe_share_group("g")
    assert (described["assignor_name"], described["group_epoch"]) == ("simple", 3)
    [topic] = described["members"][0]["assignment"]["topic_partitions"]
    assert topic == {"topic_id": T, "topic_name": "t", "partitions": [0, 1]}
    unknown = desk.machine.describe_share_group("h")
    assert unknown["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.machine.describe_consumer_group("g")["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.machine.share_partitions("g") == {(T, 0), (T, 1)}


# ---------------------------------------------------------------- offsets


def test_offsets_are_altered_in_an_epoch_of_their_own(desk: ShareDesk) -> None:
    epoch = desk.member("a")["member_epoch"]
    answer = desk.answer(AlterShareOffsets, "g", (("t", ((0, 5),)),))
    assert answer["error_code"] is ErrorCode.NON_EMPTY_GROUP
    desk.beat("a", -1)
    answer = desk.answer(AlterShareOffsets, "g", (("t", ((0, 5), (7, 1))), ("u", ((0, 1),))))
    [t, u] = answer["responses"]
    assert [one["error_code"] for one in t["partitions"]] == [
        ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert u["partitions"][0]["error_code"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = desk.asked[-1]
    assert isinstance(message, InitializeShareState)
    assert message.start_offsets == (((T, 0), 5),)
    assert message.state_epoch == desk.group.epoch > epoch + 1
    assert desk.group.states.initializing == {}


def test_offsets_of_a_group_that_is_not_there_yet_are_set(desk: ShareDesk) -> None:
    answer = desk.answer(AlterShareOffsets, "g", (("t", ((0, 5), (1, 6))),))
    assert answer["error_code"] is ErrorCode.NONE
    assert desk.group.state == "Empty"
    assert desk.group.assignment_epoch == 1, "nothing was assigned yet"
    assert partitions(desk.member("a")) == [0, 1]
    assert len(desk.asked) == 1, "nothing is begun twice"


def test_what_share_coordinators_refuse_is_told(desk: ShareDesk) -> None:
    desk.errors = {(T, 0): ErrorCode.FENCED_STATE_EPOCH}
    answer = desk.answer(AlterShareOffsets, "g", (("t", ((0, 5), (1, 6))),))
    codes = [one["error_code"] for one in answer["responses"][0]["partitions"]]
    assert codes == [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NONE]
    assert desk.group.states.assignable == {(T, 1)}


def test_offsets_are_deleted(desk: ShareDesk) -> None:
    desk.member("a")
    assert desk.answer(DeleteShareOffsets, "g", ("t",))["error_code"] is ErrorCode.NON_EMPTY_GROUP
    desk.beat("a", -1)
    answer = desk.answer(DeleteShareOffsets, "g", ("t", "u"))
    found = {one["topic_name"]: one["error_code"] for one in answer["responses"]}
    assert found == {"t": ErrorCode.NONE, "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert desk.asked[-1] == DeleteShareState(2, "g", ((T, 0), (T, 1)))
    assert desk.group.states == ShareGroup("g").states
    again = desk.answer(DeleteShareOffsets, "g", ("t",))
    [missing] = again["responses"]
    assert missing["error_code"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing["topic_id"] == UUID(int=0), "as of a topic that is not there"
    assert desk.answer(DeleteShareOffsets, "h", ("t",))["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deletion_that_failed_can_be_repeated(desk: ShareDesk) -> None:
    desk.member("a")
    desk.beat("a", -1)
    desk.errors = {(T, 1): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.group.states.deleting == {T: "t"}
    desk.errors = {}
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NONE
    assert "g" not in desk.machine.durable.share_groups
    assert desk.replayed().durable.comparable() == ({}, {}, {}, {}, {})


def test_groups_with_members_are_not_deleted(desk: ShareDesk) -> None:
    desk.member("a")
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NON_EMPTY_GROUP


def test_a_member_that_joins_while_the_group_is_deleted_keeps_it(desk: ShareDesk) -> None:
    desk.member("a")
    desk.beat("a", -1)
    desk.silent = True
    token = desk.ask(DeleteGroup, "g")
    desk.beat("b", 0, "t")
    assert isinstance(desk.asked[-1], DeleteShareState), "nothing begins that may be about to be forgotten"
    assert desk.answer(AlterShareOffsets, "g", (("t", ((0, 5),)),))["error_code"] is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    desk.silent = False
    desk.settle(desk.asked[-1])
    assert desk.answers[token]["error_code"] is ErrorCode.NON_EMPTY_GROUP
    assert partitions(desk.member("b")) == [0, 1]


def test_what_could_not_begin_during_a_deletion_begins_after_it(desk: ShareDesk) -> None:
    desk.machine.observe(image(t=2, u=1))
    desk.member("a", "t")
    desk.beat("a", -1)
    desk.silent = True
    desk.ask(DeleteGroup, "g")
    desk.beat("b", 0, "u")
    for _ in range(3):
        desk.beat("b", desk.group.current_of("b").epoch)
    desk.silent = False
    deletion = desk.asked[-1]
    assert isinstance(deletion, DeleteShareState)
    timed_out = tuple((one, ErrorCode.REQUEST_TIMED_OUT) for one in deletion.partitions)
    desk.do(ShareStateAnswered(deletion.number, "g", timed_out))
    for _ in range(3):
        desk.beat("b", desk.group.current_of("b").epoch)
    assert desk.group.current_of("b").assigned == {(U, 0)}


def test_state_of_an_earlier_group_is_overtaken(desk: ShareDesk) -> None:
    desk.errors = {(T, 0): ErrorCode.FENCED_STATE_EPOCH}
    epochs = []
    for number in range(4):
        desk.beat("a", desk.group.current_of("a").epoch if number else 0, *(() if number else ("t",)))
        message = desk.asked[-1]
        assert isinstance(message, InitializeShareState)
        epochs.append(message.state_epoch)
    assert all(later >= 2 * earlier for earlier, later in pairwise(epochs))
    desk.errors = {}
    assert partitions(desk.member("a")) == [0, 1]


def test_what_an_interrupted_alteration_left_is_cleared_by_members(desk: ShareDesk) -> None:
    desk.member("a")
    desk.beat("a", -1)
    desk.silent = True
    desk.ask(AlterShareOffsets, "g", (("t", ((0, 5),)),))
    other = ShareDesk()
    other.log, other.machine = list(desk.log), desk.replayed()
    other.machine.observe(image(t=2))
    other.run(other.machine.loaded(0))
    assert other.group.states.initializing != {}
    assert partitions(other.member("a")) == [0, 1]
    assert other.group.states.initializing == {}
    assert other.asked == []


def test_who_waits_for_share_coordinators_is_told_when_leadership_goes(desk: ShareDesk) -> None:
    desk.silent = True
    token = desk.ask(AlterShareOffsets, "g", (("t", ((0, 5),)),))
    assert token not in desk.answers
    desk.run(desk.machine.resign(0))
    assert desk.answers[token]["error_code"] is ErrorCode.NOT_COORDINATOR


def test_a_replay_gives_the_same_group(desk: ShareDesk) -> None:
    desk.member("a")
    desk.member("b", "t", "u")
    desk.beat("a", -1)
    machine = desk.replayed()
    assert machine.durable.comparable() == desk.machine.durable.comparable()
    assert machine.held_bytes() == desk.machine.held_bytes()

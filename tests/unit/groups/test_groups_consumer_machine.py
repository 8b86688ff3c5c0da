"""Consumer groups (KIP-848) by hand: one heartbeat after another, against a log in memory."""

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from tests.unit.groups.test_groups_machine import Desk
from tidelog.groups.commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    FetchOffsets,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
)
from tidelog.groups.consumer_protocol import assignment, read_assignment
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage

ONE_REPLICA = PartitionImage(1, 0, (1,), (1,))
T, U = UUID(int=1), UUID(int=2)
SETTINGS = GroupSettings(
    offsets_retention_ms=1_000,
    group_initial_rebalance_delay_ms=100,
    consumer_session_timeout_ms=10_000,
    consumer_max_size=4,
)
CLASSIC = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00"


def image(version: int = 1, **counts: int) -> ClusterImage:
    ids = {"t": T, "u": U, "__consumer_offsets": UUID(int=9)}
    topics = {name: TopicImage(name, ids[name], (ONE_REPLICA,) * count) for name, count in counts.items()}
    return ClusterImage(
        version=version, topics=topics, topic_names_by_id={ids[name]: name for name in topics}
    )


class ConsumerDesk(Desk):
    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.machine.observe(image(t=4))

    def beat(self, member_id: str, epoch: int, owned: Any = None, **changes: Any) -> Any:
        fields: dict[str, Any] = {"client_id": "c", "client_host": "/h", "owned": indexes_to_owned(owned)}
        return self.answer(ConsumerHeartbeat, "g", member_id, epoch, **{**fields, **changes})

    def enter(self, member_id: str = "a", owned: Any = (), **changes: Any) -> Any:
        fields: dict[str, Any] = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": ("t",)}
        return self.beat(member_id, 0, owned, **{**fields, **changes})

    def settle(self, *member_ids: str) -> None:
        """Members that do at once what they are told, until nothing changes."""
        for _ in range(6):
            for member_id in member_ids:
                current = self.group.current_of(member_id)
                self.beat(member_id, current.epoch, [index for _, index in current.assigned])

    def classic_join(self, member_id: str = "", **changes: Any) -> Any:
        fields: dict[str, Any] = {"requires_known_member_id": False, "protocols": (("range", CLASSIC),)}
        return self.join(member_id, **{**fields, **changes})

    @property
    def group(self) -> Any:
        return self.machine.durable.consumer_groups["g"]

    def assigned(self) -> dict[str, list[int]]:
        return {
            name: sorted(i for _, i in self.group.current_of(name).assigned) for name in self.group.members
        }

    def reload(self, observed: ClusterImage | None = None) -> None:
        """Another coordinator takes over with what is in the log."""
        self.machine = GroupMachine(0, SETTINGS)
        self.machine.observe(observed or image(t=4))
        self.timers.clear()
        for offset, (key, value) in enumerate(self.log):
            self.machine.apply(key, value, offset)
        self.run(self.machine.loaded(self.now_ms))


def indexes_to_owned(owned: Any) -> Any:
    return None if owned is None else frozenset((T, index) for index in owned)


def told(answer: Any) -> Any:
    """Epoch and partitions of `t` in an answer."""
    assert answer["error_code"] is ErrorCode.NONE, answer
    if answer["assignment"] is None:
        return answer["member_epoch"], None
    return answer["member_epoch"], [
        i for t in answer["assignment"]["topic_partitions"] for i in t["partitions"]
    ]


@pytest.fixture
def desk() -> ConsumerDesk:
    return ConsumerDesk()


# ---------------------------------------------------------------- joining and reconciling


def test_the_first_member_gets_everything(desk: ConsumerDesk) -> None:
    answer = desk.enter()
    assert told(answer) == (2, [0, 1, 2, 3])
    assert (answer["member_id"], answer["heartbeat_interval"]) == ("a", 5_000)
    assert str(desk.group.state) == "Stable"
    assert told(desk.beat("a", 2, [0, 1, 2, 3])) == (2, None)


def test_partitions_are_given_up_before_they_are_given(desk: ConsumerDesk) -> None:
    desk.enter("a")
    assert told(desk.enter("b")) == (3, [])
    assert str(desk.group.state) == "Reconciling"
    epoch, kept = told(desk.beat("a", 2, [0, 1, 2, 3]))
    assert (epoch, len(kept)) == (2, 2), "the member stays in its epoch until it has given up"
    assert told(desk.beat("b", 3, [])) == (3, None)
    assert told(desk.beat("a", 2)) == (2, None), "to say nothing is not to have given up"
    assert told(desk.beat("a", 2, kept)) == (3, None)
    assert told(desk.beat("b", 3, [])) == (3, sorted({0, 1, 2, 3} - set(kept)))
    assert str(desk.group.state) == "Stable"


def test_who_unsubscribes_while_it_gives_up_gives_up_the_rest_too(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.enter("b")
    _, kept = told(desk.beat("a", 2, [0, 1, 2, 3]))
    assert told(desk.beat("a", 2, subscribed_topic_names=())) == (2, [])
    assert desk.group.current_of("a").pending_revocation == indexes_to_owned(range(4))
    assert told(desk.beat("b", 3, [])) == (4, None), "nothing is free before it is given up"
    assert told(desk.beat("a", 2, kept)) == (2, None)
    assert told(desk.beat("a", 2, [])) == (4, None)
    assert told(desk.beat("b", 4, [])) == (4, [0, 1, 2, 3])


def test_a_lost_answer_is_asked_for_again(desk: ConsumerDesk) -> None:
    desk.enter("a")
    assert told(desk.enter("a")) == (2, [0, 1, 2, 3])
    desk.enter("b")
    desk.settle("a", "b")
    assert desk.group.current_of("a").epoch == 3
    full = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": ("t",)}
    kept = desk.assigned()["a"]
    assert told(desk.beat("a", 2, kept, **full)) == (3, kept)
    assert desk.beat("a", 2, [0, 1, 2, 3], **full)["error_code"] is ErrorCode.FENCED_MEMBER_EPOCH
    assert desk.beat("a", 10, kept)["error_code"] is ErrorCode.FENCED_MEMBER_EPOCH
    assert desk.beat("x", 2, kept)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat("a", 3, kept)["error_code"] is ErrorCode.NONE


def test_who_did_not_hear_an_answer_is_told_its_assignment_again(desk: ConsumerDesk) -> None:
    """Not only if it says everything: a heartbeat may arrive twice, and the second answer be heard first."""
    desk.enter("a")
    desk.enter("b")
    desk.settle("a", "b")
    kept = desk.assigned()["a"]
    desk.beat("b", -1)
    assert told(desk.beat("a", 3, kept)) == (4, [0, 1, 2, 3])
    assert told(desk.beat("a", 3, kept)) == (4, [0, 1, 2, 3])
    assert told(desk.beat("a", 4, [0, 1, 2, 3])) == (4, None)


def test_a_member_joins_again_whatever_its_epoch(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.enter("b")
    desk.settle("a", "b")
    desk.beat("b", -1)
    desk.settle("a")
    assert told(desk.enter("a")) == (4, [0, 1, 2, 3])
    assert told(desk.enter("a", instance_id=None)) == (4, [0, 1, 2, 3])


def test_a_member_without_a_subscription_makes_no_epoch(desk: ConsumerDesk) -> None:
    assert told(desk.enter("a", subscribed_topic_names=())) == (1, [])
    assert told(desk.enter("b", subscribed_topic_names=())) == (1, [])
    assert told(desk.beat("a", 1, subscribed_topic_names=("t",))) == (2, [0, 1, 2, 3])
    desk.reload()
    assert desk.group.epoch == 2


def test_a_bad_expression_takes_no_static_members_place(desk: ConsumerDesk) -> None:
    desk.enter("a", instance_id="i")
    desk.beat("a", -2, instance_id="i")
    bad = desk.enter("b", instance_id="i", subscribed_topic_regex="(")
    assert bad["error_code"] is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert list(desk.group.members) == ["a"] and ("consumer session", "g", "a") in desk.timers


def test_a_member_that_leaves_frees_its_partitions(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.enter("b")
    desk.settle("a", "b")
    assert desk.beat("b", -1)["member_epoch"] == -1
    assert str(desk.group.state) == "Assigning"
    assert told(desk.beat("a", 3, desk.assigned()["a"])) == (4, [0, 1, 2, 3])
    assert desk.beat("b", -1)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_and_stubborn_members_are_removed(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.pass_time(10_001)
    assert not desk.group.members
    desk.enter("a")
    desk.enter("b")
    desk.beat("a", desk.group.current_of("a").epoch, [0, 1, 2, 3])
    for _ in range(6):  # it beats on but does not give up
        desk.pass_time(1_000)
        for name in list(desk.group.members):
            desk.beat(name, desk.group.current_of(name).epoch)
    assert list(desk.group.members) == ["b"]


def test_refused_appends_change_nothing(desk: ConsumerDesk) -> None:
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert desk.enter("a")["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "g" not in desk.machine.durable.consumer_groups and not desk.timers
    desk.refuse = None
    desk.enter("a")
    desk.refuse = ErrorCode.NOT_LEADER_OR_FOLLOWER
    desk.pass_time(10_100)
    assert list(desk.group.members) == ["a"]
    desk.refuse = None
    desk.pass_time(600)
    assert not desk.group.members


def test_metadata_changes_make_a_new_epoch(desk: ConsumerDesk) -> None:
    desk.enter("a", subscribed_topic_names=("t", "u"))
    desk.machine.observe(image(2, t=4, u=1))
    assert told(desk.beat("a", 2, [0, 1, 2, 3])) == (3, [0, 1, 2, 3, 0])
    desk.machine.observe(image(3, t=4, u=1))
    records = len(desk.log)
    assert told(desk.beat("a", 3)) == (3, None)
    assert len(desk.log) == records, "metadata that says the same writes nothing"
    desk.machine.observe(image(4, t=5))
    answer = desk.answer(
        ConsumerHeartbeat, "g", "a", 3, "c", "/h", owned=frozenset([*((T, i) for i in range(4)), (U, 0)])
    )
    assert told(answer) == (3, [0, 1, 2, 3])
    assert told(desk.beat("a", 3, [0, 1, 2, 3])) == (4, [0, 1, 2, 3, 4])


def test_expressions_follow_the_topics(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(1, u=1, __consumer_offsets=1))
    answer = desk.enter("a", subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert told(answer) == (2, [0])
    desk.machine.observe(image(2, u=1, t=2, __consumer_offsets=1))
    assert told(desk.beat("a", 2)) == (3, [0, 1, 0])
    described = desk.machine.describe_consumer_group("g")
    assert described["members"][0]["subscribed_topic_regex"] == ".*"  # type: ignore[index]
    bad = desk.enter("b", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert bad["error_code"] is ErrorCode.INVALID_REGULAR_EXPRESSION
    desk.beat("a", -1)
    assert not desk.group.regexes


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": [0]}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"server_assignor": "range"}, ErrorCode.NONE),
        ({"subscribed_topic_names": ()}, ErrorCode.NONE),
    ],
)
def test_first_heartbeats_must_say_everything(
    desk: ConsumerDesk, changes: dict[str, Any], error: ErrorCode
) -> None:
    assert desk.enter("a", **changes)["error_code"] is error


def test_other_heartbeats_that_make_no_sense(desk: ConsumerDesk) -> None:
    assert desk.beat("a", 2)["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.beat("a", -1)["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.beat("a", -3)["error_code"] is ErrorCode.INVALID_REQUEST
    assert desk.beat("a", -2)["error_code"] is ErrorCode.INVALID_REQUEST
    assert desk.enter("")["error_code"] is ErrorCode.INVALID_REQUEST
    assert told(desk.enter("", new_member_id="made")) == (2, [0, 1, 2, 3])
    assert list(desk.group.members) == ["made"]


def test_the_group_has_a_limit(desk: ConsumerDesk) -> None:
    for name in "abcd":
        assert desk.enter(name)["error_code"] is ErrorCode.NONE
    assert desk.enter("e")["error_code"] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.enter("d")["error_code"] is ErrorCode.NONE


# ---------------------------------------------------------------- static members


def test_a_static_member_that_comes_back_keeps_its_partitions(desk: ConsumerDesk) -> None:
    desk.enter("a", instance_id="i")
    desk.enter("b")
    desk.settle("a", "b")
    kept, epoch = desk.assigned()["a"], desk.group.epoch
    assert desk.enter("a2", instance_id="i")["error_code"] is ErrorCode.UNRELEASED_INSTANCE_ID
    assert desk.beat("a", -2, instance_id="i")["member_epoch"] == -2
    assert told(desk.enter("a2", instance_id="i")) == (epoch, kept)
    assert desk.group.epoch == epoch, "no rebalance"
    assert desk.beat("a", 2, kept, instance_id="i")["error_code"] is ErrorCode.FENCED_INSTANCE_ID
    assert desk.beat("a", -2, instance_id="i")["error_code"] is ErrorCode.FENCED_INSTANCE_ID
    assert desk.beat("x", 2, instance_id="j")["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    desk.beat("a2", -2, instance_id="i")
    desk.pass_time(9_000)
    desk.beat("b", epoch)
    desk.pass_time(2_000)
    assert list(desk.group.members) == ["b"]


# ---------------------------------------------------------------- offsets


def commit(
    desk: ConsumerDesk, member_id: str, epoch: int, api_version: int = 9, partition: int = 0
) -> ErrorCode:
    offsets = (OffsetToCommit("t", partition, 5),)
    answer = desk.answer(CommitOffsets, "g", member_id, None, epoch, offsets, api_version=api_version)
    return answer["topics"][0]["partitions"][0]["error_code"]


def test_offsets_are_committed_and_fetched_in_the_members_epoch(desk: ConsumerDesk) -> None:
    desk.enter("a")
    assert commit(desk, "a", 2) is ErrorCode.NONE
    assert commit(desk, "a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(desk, "x", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(desk, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(desk, "a", 2, api_version=8) is ErrorCode.UNSUPPORTED_VERSION
    for member_id, epoch, error in (
        ("a", 2, ErrorCode.NONE),
        ("a", 0, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, -1, ErrorCode.NONE),
    ):
        answer = desk.answer(FetchOffsets, "g", None, False, member_id, epoch)
        assert answer["error_code"] is error
    subscribed = desk.answer(DeleteOffsets, "g", (("t", (0,)),))["topics"][0]["partitions"][0]
    assert subscribed["error_code"] is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    desk.beat("a", -1)
    assert commit(desk, "", -1) is ErrorCode.NONE


def test_a_member_may_commit_in_an_older_epoch_what_it_has_owned_since(desk: ConsumerDesk) -> None:
    """KIP-1251: the answer that tells it of its new epoch may still be on its way."""
    desk.enter("a")
    desk.enter("b")
    epoch, kept = told(desk.beat("a", 2, [0, 1, 2, 3]))
    assert (epoch, len(kept)) == (2, 2), "two of the four are to be given up"
    given = next(index for index in range(4) if index not in kept)
    assert told(desk.beat("a", 2, kept))[0] == 3
    assert commit(desk, "a", 2, partition=kept[0]) is ErrorCode.NONE
    assert commit(desk, "a", 2, partition=given) is ErrorCode.STALE_MEMBER_EPOCH
    for epoch in (0, 4):
        assert commit(desk, "a", epoch, partition=kept[0]) is ErrorCode.STALE_MEMBER_EPOCH
    desk.settle("a", "b")
    desk.beat("b", -1)
    assert told(desk.beat("a", 3, kept)) == (4, [0, 1, 2, 3])
    assert commit(desk, "a", 3, partition=kept[0]) is ErrorCode.NONE
    # In the epoch it names this one was another's.
    assert commit(desk, "a", 3, partition=given) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(desk, "a", 4, partition=given) is ErrorCode.NONE


def test_empty_groups_are_deleted_and_expire(desk: ConsumerDesk) -> None:
    desk.enter("a")
    commit(desk, "a", 2)
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NON_EMPTY_GROUP
    desk.beat("a", -1)
    assert desk.answer(DeleteGroup, "g")["error_code"] is ErrorCode.NONE
    assert desk.machine.durable.comparable() == ({}, {}, {}, {}, {})
    desk.enter("a")
    commit(desk, "a", 2)
    desk.now_ms += 2_000
    desk.do(ExpireOffsets())
    assert desk.group.members and desk.machine.durable.offsets.has_any("g")
    desk.beat("a", -1)
    desk.do(ExpireOffsets())
    assert desk.machine.durable.comparable() == ({}, {}, {}, {}, {}) and not desk.machine.groups


# ---------------------------------------------------------------- looking and loading


def test_groups_of_both_types_are_listed_and_described(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.classic_join(group_id="k")
    listed = desk.machine.list_groups(frozenset(), frozenset())
    assert {(g["group_id"], g["group_type"]) for g in listed} == {("g", "consumer"), ("k", "classic")}
    only = desk.machine.list_groups(frozenset({"stable"}), frozenset({"consumer"}))
    assert [(g["group_id"], g["protocol_type"], g["group_state"]) for g in only] == [
        ("g", "consumer", "Stable")
    ]
    described: Any = desk.machine.describe_consumer_group("g")
    assert (described["group_epoch"], described["assignment_epoch"], described["assignor_name"]) == (
        2,
        2,
        "uniform",
    )
    (member,) = described["members"]
    assert member["assignment"] == member["target_assignment"]
    assert member["assignment"]["topic_partitions"][0]["topic_name"] == "t"


def test_a_topic_that_is_gone_is_not_described(desk: ConsumerDesk) -> None:
    """Also before a heartbeat has brought the group to know of it."""
    desk.enter("a")
    desk.machine.observe(image(version=2))
    described: Any = desk.machine.describe_consumer_group("g")
    (member,) = described["members"]
    assert member["assignment"] == member["target_assignment"] == {"topic_partitions": []}
    assert member["member_type"] == 1
    assert desk.machine.describe_consumer_group("k")["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.machine.describe_consumer_group("x")["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    other = desk.machine.describe_group("g", missing_is_error=True)
    assert other["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.machine.describe_group("g", missing_is_error=False)["group_state"] == "Dead"


def test_a_group_that_moves_goes_on_where_it_was(desk: ConsumerDesk) -> None:
    desk.enter("a")
    desk.enter("b", instance_id="i")
    desk.beat("a", 2, [0, 1, 2, 3])
    before = desk.group.comparable()
    desk.reload()
    assert desk.group.comparable() == before
    assert {kind for kind, _, _ in desk.timers} == {"consumer session", "consumer rebalance"}
    desk.settle("a", "b")
    assert sorted(index for indexes in desk.assigned().values() for index in indexes) == [0, 1, 2, 3]


# ---------------------------------------------------------------- between the protocols


def test_an_empty_classic_group_becomes_a_consumer_group_and_back(desk: ConsumerDesk) -> None:
    desk.answer(LeaveGroup, "g", (LeavingMember(stable_classic(desk)),))
    assert told(desk.enter("a")) == (2, [0, 1, 2, 3])
    assert not desk.machine.groups and not desk.machine.durable.groups
    desk.beat("a", -1)
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    refused = desk.answers[desk.classic_join()]
    assert refused["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.refuse = None
    token = desk.classic_join()
    desk.pass_time(200)
    assert desk.answers[token]["generation_id"] == 1
    assert not desk.machine.durable.consumer_groups and list(desk.machine.groups) == ["g"]


def stable_classic(desk: ConsumerDesk) -> str:
    token = desk.classic_join()
    desk.pass_time(200)
    member = desk.answers[token]["member_id"]
    desk.sync(member, 1, ((member, assignment(1, [("t", [0, 1, 2, 3])])),))
    return str(member)


def test_a_classic_group_is_upgraded_while_it_works(desk: ConsumerDesk) -> None:
    member = stable_classic(desk)
    assert told(desk.enter("a")) == (2, []), "the classic member still reads everything"
    assert desk.group.members[member].classic is not None
    beat = desk.answer(Heartbeat, "g", member, None, 1)
    assert beat["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
    joined = desk.answers[desk.classic_join(member)]
    assert (joined["error_code"], joined["leader"], joined["members"]) == (ErrorCode.NONE, "", ())
    synced = desk.answers[desk.sync(member, joined["generation_id"])]
    ((_, mine),) = read_assignment(synced["assignment"])
    assert len(mine) == 2
    assert told(desk.beat("a", 2, [])) == (2, sorted({0, 1, 2, 3} - set(mine)))
    assert commit(desk, member, joined["generation_id"], api_version=7) is ErrorCode.NONE
    assert commit(desk, member, 1, partition=mine[0]) is ErrorCode.NONE, (
        "its own in the older generation, too"
    )
    (given, _) = {0, 1, 2, 3} - set(mine)
    assert commit(desk, member, 1, partition=given) is ErrorCode.ILLEGAL_GENERATION
    assert desk.answer(Heartbeat, "g", member, None, 2)["error_code"] is ErrorCode.NONE
    assert desk.answer(Heartbeat, "g", "a", None, 2)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID
    before = desk.group.comparable()
    desk.reload()
    assert desk.group.comparable() == before


def test_the_last_consumer_that_leaves_makes_the_group_classic_again(desk: ConsumerDesk) -> None:
    member = stable_classic(desk)
    desk.enter("a")
    joined = desk.answers[desk.classic_join(member)]
    assert desk.beat("a", -1)["error_code"] is ErrorCode.NONE
    assert not desk.machine.durable.consumer_groups
    assert {key[0] for key in desk.timers} == {"session", "join"}
    beat = desk.answer(Heartbeat, "g", member, None, joined["generation_id"])
    assert beat["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
    again = desk.answers[desk.classic_join(member)]
    assert (again["error_code"], again["leader"]) == (ErrorCode.NONE, member)
    assert again["generation_id"] > joined["generation_id"]


def test_classic_members_leave_a_consumer_group(desk: ConsumerDesk) -> None:
    member = stable_classic(desk)
    desk.enter("a")
    left = desk.answer(LeaveGroup, "g", (LeavingMember(member), LeavingMember("x")))
    errors = [one["error_code"] for one in left["members"]]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert told(desk.beat("a", 2, [])) == (3, [0, 1, 2, 3])


def left_group(desk: ConsumerDesk, *members: LeavingMember) -> list[tuple[str, ErrorCode]]:
    """Who was answered what, as removeMembersFromConsumerGroup of the admin client asks."""
    answer = desk.answer(LeaveGroup, "g", members)
    assert answer["error_code"] is ErrorCode.NONE
    return [(one["member_id"], one["error_code"]) for one in answer["members"]]


def test_administrators_remove_members_of_the_consumer_protocol(desk: ConsumerDesk) -> None:
    """As Apache Kafka 4.3.1 answers: the member id is that of the request, also where it is empty."""
    for name in "abc":
        desk.enter(name, instance_id=f"i-{name}")
    desk.enter("d")
    assert left_group(desk, LeavingMember("", "i-a")) == [("", ErrorCode.NONE)]
    assert left_group(desk, LeavingMember("b", "i-b")) == [("b", ErrorCode.NONE)]
    assert left_group(desk, LeavingMember("z", "i-c")) == [("z", ErrorCode.FENCED_INSTANCE_ID)]
    assert left_group(desk, LeavingMember("", "i-x")) == [("", ErrorCode.UNKNOWN_MEMBER_ID)]
    assert set(desk.group.members) == {"c", "d"}
    epoch = desk.group.epoch
    assert left_group(desk, LeavingMember("d")) == [("d", ErrorCode.NONE)]
    assert desk.group.epoch == epoch + 1
    desk.beat("c", -2, instance_id="i-c")
    gone = left_group(desk, LeavingMember("", "i-c"), LeavingMember("", "i-c"))
    assert gone == [("", ErrorCode.NONE)] * 2, "away for a while, and named twice"
    assert not desk.group.members and not desk.timers
    assert desk.beat("d", 2)["error_code"] is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_never_rejoins_is_removed(desk: ConsumerDesk) -> None:
    member = stable_classic(desk)
    desk.enter("a")
    for _ in range(21):
        desk.answer(Heartbeat, "g", member, None, 1)
        desk.beat("a", 2)
        desk.pass_time(1_000)
    assert list(desk.group.members) == ["a"]


def test_the_policy_may_forbid_both_ways() -> None:
    desk = ConsumerDesk(GroupSettings(group_initial_rebalance_delay_ms=100, allows_upgrade=False))
    stable_classic(desk)
    assert desk.enter("a")["error_code"] is ErrorCode.GROUP_ID_NOT_FOUND
    desk = ConsumerDesk(GroupSettings(group_initial_rebalance_delay_ms=100, allows_downgrade=False))
    member = stable_classic(desk)
    desk.enter("a")
    desk.beat("a", -1)
    assert list(desk.group.members) == [member]
    other_type = desk.answers[desk.classic_join(protocol_type="connect")]
    assert other_type["error_code"] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_those_who_wait_in_a_classic_group_are_told_of_the_upgrade(desk: ConsumerDesk) -> None:
    token = desk.classic_join()
    desk.enter("a")
    assert desk.answers[token]["error_code"] is ErrorCode.REBALANCE_IN_PROGRESS
    assert not desk.machine.groups


# ---------------------------------------------------------------- expressions and rights


@dataclass(frozen=True)
class Rights:
    """What a principal may describe, equal by who it is, as a broker with an authorizer says it."""

    principal: str
    host: str = "/h"
    names: set[str] = field(default_factory=set, compare=False)

    def __call__(self, name: str) -> bool:
        return name in self.names


def rights(*names: str, principal: str = "User:one", host: str = "/h") -> Rights:
    return Rights(principal, host, set(names))


def matched(desk: ConsumerDesk, member_id: str) -> set[UUID]:
    """The topics that a member is to read."""
    return {topic_id for topic_id, _ in desk.group.target_of(member_id)}


def enter_by_expression(desk: ConsumerDesk, member_id: str, *names: str, expression: str = ".*") -> Any:
    return desk.enter(
        member_id,
        subscribed_topic_names=None,
        subscribed_topic_regex=expression,
        may_describe=rights(*names),
    )


def test_an_expression_matches_what_the_member_may_describe(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    enter_by_expression(desk, "a", "t")
    assert matched(desk, "a") == {T}
    assert desk.group.regexes[".*"].topics == ("t",), "nor is it written down"


def test_an_expression_of_two_members_matches_what_both_may_describe(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    enter_by_expression(desk, "a", "t", "u")
    assert matched(desk, "a") == {T, U}
    enter_by_expression(desk, "b", "t")
    assert matched(desk, "a") | matched(desk, "b") == {T}
    desk.beat("b", -1, may_describe=rights("t"))
    desk.beat("a", desk.group.current_of("a").epoch, may_describe=rights("t", "u"))
    assert matched(desk, "a") == {T, U}, "whoever is gone limits nobody"


def test_a_right_that_is_taken_away_counts_with_the_next_image(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    allowed = rights("t", "u")
    fields = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    desk.enter("a", may_describe=allowed, **fields)
    desk.enter("b", subscribed_topic_names=("u",), may_describe=allowed)
    assert matched(desk, "a") | matched(desk, "b") == {T, U}
    allowed.names.remove("u")
    desk.machine.observe(image(3, t=2, u=2))
    current = desk.group.current_of("a")
    desk.beat("a", current.epoch, may_describe=allowed)
    assert matched(desk, "a") == {T}, "though another member reads it by its name"


def test_another_coordinator_learns_of_rights_with_the_first_heartbeat(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    enter_by_expression(desk, "a", "t", "u")
    epoch = desk.group.current_of("a").epoch
    desk.reload(image(2, t=2, u=2))
    desk.beat("a", epoch, may_describe=rights("t"))
    assert matched(desk, "a") == {T}


MAY_DESCRIBE = {"a": rights("t", "u"), "b": rights("t", principal="User:two")}


def say_alive(desk: ConsumerDesk, member_id: str, owned: Any = None, **changes: Any) -> Any:
    """A heartbeat of a member with its rights, in the epoch it is in."""
    epoch = desk.group.current_of(member_id).epoch
    return desk.beat(member_id, epoch, owned, **{"may_describe": MAY_DESCRIBE[member_id], **changes})


def settled_by_expression(desk: ConsumerDesk, **expressions: str) -> None:
    """Members with an expression each, of which b may describe nothing but t, share all they may read."""
    desk.machine.observe(image(2, t=2, u=2))
    for member_id, expression in expressions.items():
        fields = {"subscribed_topic_names": None, "subscribed_topic_regex": expression}
        desk.enter(member_id, may_describe=MAY_DESCRIBE[member_id], **fields)
    for _ in range(6):
        for member_id in expressions:
            owned = desk.group.current_of(member_id).assigned
            say_alive(desk, member_id, [index for topic, index in owned if topic == T])
    assert str(desk.group.state) == "Stable"
    assert desk.group.regexes[expressions["b"]].topics == ("t",)


@pytest.mark.parametrize("expressions", [{"a": ".*", "b": ".*"}, {"a": ".*", "b": "[tu]"}])
@pytest.mark.parametrize("first_heard_of", ["ab", "ba"])
def test_another_coordinator_moves_nothing_before_it_has_heard_of_all(
    desk: ConsumerDesk, expressions: dict[str, str], first_heard_of: str
) -> None:
    settled_by_expression(desk, **expressions)
    written = list(desk.log)
    desk.reload(image(2, t=2, u=2))
    for member_id in first_heard_of:
        assert say_alive(desk, member_id)["error_code"] is ErrorCode.NONE
    assert desk.log == written


def test_what_a_member_not_yet_heard_of_may_know_only_shrinks(desk: ConsumerDesk) -> None:
    settled_by_expression(desk, a=".*", b="[tu]")
    desk.reload(image(3, u=2))
    say_alive(desk, "a")
    assert desk.group.regexes["[tu]"].topics == (), "t is gone, and u was not for b"
    desk.machine.observe(image(4, t=2, u=2))
    say_alive(desk, "a")
    assert desk.group.regexes[".*"].topics == ("t", "u")
    assert desk.group.regexes["[tu]"].topics == ()
    say_alive(desk, "b")
    assert desk.group.regexes["[tu]"].topics == ("t",), "it was heard of"


def test_a_leave_before_another_heartbeat_tells_nobody_more(desk: ConsumerDesk) -> None:
    settled_by_expression(desk, a=".*", b="[tu]")
    desk.reload(image(2, t=2, u=2))
    desk.beat("a", -1, may_describe=MAY_DESCRIBE["a"])
    assert list(desk.group.members) == ["b"]
    assert desk.group.regexes["[tu]"].topics == ("t",)


def classic_member_comes_and_leaves_another_coordinator(desk: ConsumerDesk, observed: ClusterImage) -> None:
    """The subscriptions are looked at although that coordinator has heard of no consumer yet."""
    member_id = desk.answers[desk.classic_join()]["member_id"]
    assert member_id in desk.group.members
    desk.reload(observed)
    desk.answer(LeaveGroup, "g", (LeavingMember(member_id),))
    assert member_id not in desk.group.members


def test_what_happens_before_any_heartbeat_tells_nobody_more(desk: ConsumerDesk) -> None:
    settled_by_expression(desk, a=".*", b="[tu]")
    classic_member_comes_and_leaves_another_coordinator(desk, image(2, t=2, u=2))
    assert desk.group.regexes["[tu]"].topics == ("t",)


def test_without_limits_the_first_heartbeat_brings_new_topics(desk: ConsumerDesk) -> None:
    fields = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    for member_id in "ab":
        desk.enter(member_id, **fields)
    classic_member_comes_and_leaves_another_coordinator(desk, image(2, t=4, u=2))
    assert desk.group.regexes[".*"].topics == ("t",), "whether there are limits is not known yet"
    desk.beat("a", desk.group.current_of("a").epoch)
    assert desk.group.regexes[".*"].topics == ("t", "u"), "though b was not heard of"


@pytest.mark.parametrize(
    "changes", [{"principal": "User:two"}, {"host": "/elsewhere"}, {"principal": "User:two", "host": "/x"}]
)
def test_a_member_id_that_comes_from_elsewhere_has_the_rights_of_there(
    desk: ConsumerDesk, changes: dict[str, str]
) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    enter_by_expression(desk, "a", "t", "u")
    desk.enter("b", may_describe=rights("t"))
    host = changes.get("host", "/h")
    say_alive(desk, "a", may_describe=rights("t", **changes), client_host=host)
    assert desk.group.regexes[".*"].topics == ("t",)
    assert U not in {topic for topic, _ in desk.group.target_of("a")}
    say_alive(desk, "a", may_describe=rights("t", "u"))
    assert desk.group.regexes[".*"].topics == ("t", "u"), "and back"


def test_a_heartbeat_from_the_same_principal_and_host_checks_nothing_again(desk: ConsumerDesk) -> None:
    desk.machine.observe(image(2, t=2, u=2))
    enter_by_expression(desk, "a", "t")
    assert say_alive(desk, "a", may_describe=rights("t"))["error_code"] is ErrorCode.NONE
    written = list(desk.log)
    again = say_alive(desk, "a", may_describe=rights("t", "u"))
    assert told(again) == (desk.group.epoch, None), "ACLs change with an image, not in between"
    assert desk.log == written


def test_rights_of_strangers_and_of_the_dead_are_not_kept(desk: ConsumerDesk) -> None:
    for number in range(50):
        desk.beat(f"nobody-{number}", 7, may_describe=rights("t"))
    enter_by_expression(desk, "a", "t")
    kept = desk.machine._consumers._rights
    assert list(kept) == [("g", "a")]
    desk.pass_time(SETTINGS.consumer_session_timeout_ms + 1)
    assert not kept


def test_a_group_has_a_session_and_a_heartbeat_of_its_own() -> None:
    """They count from the next heartbeat on, and go with the settings."""
    own = {"consumer.session.timeout.ms": "20000", "consumer.heartbeat.interval.ms": "7000"}
    desk = ConsumerDesk()
    assert desk.enter()["heartbeat_interval"] == SETTINGS.consumer_heartbeat_interval_ms
    with_own = replace(image(t=4), group_configs={"g": own})
    desk.machine.observe(with_own)
    assert desk.beat("a", 2, [0, 1, 2, 3])["heartbeat_interval"] == 7_000
    desk.pass_time(15_000)
    assert "a" in desk.group.members
    desk.pass_time(6_000)
    assert "g" not in desk.machine.durable.consumer_groups or not desk.group.members


def test_a_groups_own_times_stay_within_the_brokers_bounds() -> None:
    settings = GroupSettings(
        consumer_min_session_timeout_ms=10_000,
        consumer_max_session_timeout_ms=30_000,
        consumer_min_heartbeat_interval_ms=1_000,
        consumer_max_heartbeat_interval_ms=3_000,
    )
    times = settings.times_of
    long, short = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert times({long: "60000", short: "10"}) == (30_000, 1_000)
    assert times({long: "5", short: "5000"}) == (10_000, 3_000)
    narrow = replace(settings, consumer_max_session_timeout_ms=2_000, consumer_min_session_timeout_ms=1)
    assert narrow.times_of({long: "60000", short: "3000"}) == settings.consumer_times

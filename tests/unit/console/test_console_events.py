"""The difference between two looks at a cluster, as events."""

from dataclasses import replace

from tidelog.admin.snapshot import (
    BrokerView,
    GroupView,
    MemberView,
    PartitionView,
    Snapshot,
    TopicView,
    group_label,
)
from tidelog.console.events import changes, newest_first

BROKERS = {number: BrokerView(number, "h", 9090 + number) for number in (1, 2, 3)}


def topic(name: str, *partitions: tuple[int, tuple[int, ...]]) -> TopicView:
    return TopicView(
        name,
        tuple(
            PartitionView(number, leader, (1, 2, 3), isr) for number, (leader, isr) in enumerate(partitions)
        ),
    )


def snapshot(*topics: TopicView, groups: tuple[GroupView, ...] = (), at: float = 1.0) -> Snapshot:
    return Snapshot("c", 1, BROKERS, {t.name: t for t in topics}, {g.id: g for g in groups}, at)


def texts(before: Snapshot, after: Snapshot) -> list[tuple[str, str, str]]:
    return [(event.kind, event.severity, event.text) for event in changes(before, after)]


FULL = (1, 2, 3)


def test_nothing_changed() -> None:
    state = snapshot(topic("t", (1, FULL)), groups=(GroupView("g", "stable", "classic"),))
    assert changes(state, replace(state, taken_at=2.0)) == []


def test_a_broker_goes_and_leaders_move() -> None:
    before = snapshot(topic("t", (1, FULL), (2, FULL)))
    after = snapshot(topic("t", (2, (2, 3)), (2, (2, 3))), at=5.0)
    after = replace(after, brokers={2: BROKERS[2], 3: BROKERS[3]}, controller=2)
    assert texts(before, after) == [
        ("broker-gone", "bad", "Broker 1 is gone"),
        ("controller", "note", "The controller is broker 2, it was 1"),
        ("leader", "note", "t-0 is led by broker 2, before by 1"),
        ("isr-shrank", "warn", "t-0 lost broker 1 from its in-sync replicas"),
        ("isr-shrank", "warn", "t-1 lost broker 1 from its in-sync replicas"),
    ]
    assert all(event.at == 5.0 for event in changes(before, after))
    assert after.under_replicated == 2
    assert after.missing_brokers == (1,)
    assert not after.healthy
    assert texts(after, before)[0] == ("broker-here", "good", "Broker 1 is here")
    assert ("isr-grew", "good", "t-0 has broker 1 in sync again") in texts(after, before)


def test_no_leader_and_back() -> None:
    led, lost = snapshot(topic("t", (1, FULL))), snapshot(topic("t", (-1, FULL)))
    assert texts(led, lost) == [("leader", "bad", "t-0 has no leader, it was broker 1")]
    assert texts(lost, led) == [("leader", "good", "t-0 is led by broker 1 again")]
    assert lost.offline == 1


def test_many_changes_of_a_topic_are_one_event() -> None:
    before = snapshot(topic("t", *[(1, FULL)] * 10))
    after = snapshot(topic("t", *[(2, FULL)] * 9, (-1, FULL)))
    ((kind, severity, text),) = texts(before, after)
    assert (kind, severity) == ("leader", "bad")
    assert text == "10 leaders of t moved, first: t-9 has no leader, it was broker 1"


def test_topics_come_go_and_grow() -> None:
    before = snapshot(topic("a", (1, FULL)), topic("b", (1, FULL)))
    after = snapshot(topic("b", (1, FULL), (1, FULL)), topic("c", (1, FULL)))
    assert [kind for kind, _, _ in texts(before, after)] == ["topic-created", "topic-deleted", "topic-grown"]


def member(name: str, *partitions: int) -> MemberView:
    return MemberView(f"{name}-id", name, "/h", None, tuple(("t", number) for number in partitions))


def test_the_story_of_a_rebalance() -> None:
    alone = GroupView("g", "stable", "classic", (member("one", 0, 1),), described=True)
    both = GroupView("g", "stable", "classic", (member("one", 0), member("two", 1)), described=True)
    assert texts(snapshot(groups=(alone,)), snapshot(groups=(both,))) == [
        ("member-joined", "note", "two joined group g from /h"),
        ("reassigned", "note", "1 partition of group g went to another member: t-1 from one to two"),
    ]
    empty = GroupView("g", "empty", "classic", described=True)
    assert texts(snapshot(groups=(both,)), snapshot(groups=(empty,))) == [
        ("member-left", "warn", "one left group g"),
        ("member-left", "warn", "two left group g"),
        ("unassigned", "warn", "t-0, t-1 are read by nobody in group g"),
        ("group-state", "note", "Group g is empty, it was stable"),
    ]


def test_labels() -> None:
    assert group_label("spark-kafka-source-1", "classic") == "spark"
    assert group_label("tidelog-spark-1", "classic") == "spark"
    assert group_label("g", "consumer") == "new protocol"
    assert group_label("g", "classic") == "classic"


def test_the_latest_look_is_first_and_begins_with_its_cause() -> None:
    early = changes(snapshot(topic("a", (1, FULL))), snapshot(topic("a", (2, FULL)), at=2.0))
    before = snapshot(topic("a", (1, FULL)))
    after = replace(snapshot(topic("a", (2, (2, 3))), at=5.0), brokers={2: BROKERS[2], 3: BROKERS[3]})
    shown = [event.kind for event in newest_first([*early, *changes(before, after)])]
    assert shown == ["broker-gone", "leader", "isr-shrank", "leader"]


def test_a_group_of_the_new_protocol_tells_its_epochs_and_long_moves_are_cut() -> None:
    one = GroupView("g", "stable", "consumer", (member("one", *range(9)),), described=True, epoch=4)
    two = GroupView("g", "reconciling", "consumer", (member("two", *range(9)),), described=True, epoch=6)
    told = texts(snapshot(groups=(one,)), snapshot(groups=(two,)))
    assert ("group-epoch", "note", "Group g is at epoch 6, it was 4") in told
    moved = next(text for kind, _, text in told if kind == "reassigned")
    assert moved.startswith("9 partitions of group g went to another member: t-0 from one to two, ")
    assert moved.endswith(", and 6 more")

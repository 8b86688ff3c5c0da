"""The server-side assignors: what holds for every group, and what a few groups get."""

from collections.abc import Mapping
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.groups.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from tidelog.groups.consumer_schemas import Partitions

TOPICS = [UUID(int=number) for number in range(1, 5)]
counts = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})
topic_sets = st.frozensets(st.sampled_from(TOPICS))
member_ids = st.integers(0, 30).map(lambda number: f"m{number:02}")


@st.composite
def groups(draw: st.DrawFn, *, equal: bool) -> dict[str, Subscriber]:
    common = draw(topic_sets)
    names = draw(st.lists(member_ids, min_size=1, max_size=8, unique=True))
    static = st.none() | st.just("i")
    return {
        name: Subscriber(
            f"i-{name}" if draw(static) else None,
            common if equal else draw(topic_sets),
            draw(st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 14)), max_size=10)),
        )
        for name in names
    }


def wanted(members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]) -> set[tuple[UUID, int]]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {(topic, index) for topic in topics for index in range(partition_counts[topic])}


def after(members: Mapping[str, Subscriber], targets: Mapping[str, Partitions]) -> dict[str, Subscriber]:
    return {name: member._replace(previous=targets[name]) for name, member in members.items()}


@given(groups(equal=False), counts, st.sampled_from(sorted(ASSIGNORS)))
@settings(max_examples=150, deadline=None)
def test_every_partition_has_one_subscribed_reader(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int], assignor: str
) -> None:
    targets = ASSIGNORS[assignor](members, partition_counts)
    assert targets.keys() == members.keys()
    given_out = [partition for target in targets.values() for partition in target]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted(members, partition_counts)
    for name, target in targets.items():
        assert {topic for topic, _ in target} <= members[name].topics


@given(groups(equal=True), counts)
@settings(max_examples=150, deadline=None)
def test_uniform_is_balanced_and_moves_no_more_than_balance_needs(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int]
) -> None:
    targets = assign_uniform(members, partition_counts)
    sizes = [len(target) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    assert assign_uniform(after(members, targets), partition_counts) == targets


@given(groups(equal=False), counts)
@settings(max_examples=150, deadline=None)
def test_no_single_move_makes_uniform_more_even(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int]
) -> None:
    targets = assign_uniform(members, partition_counts)
    for target in targets.values():
        for topic, _ in target:
            others = [len(targets[other]) for other in members if topic in members[other].topics]
            assert len(target) - min(others) <= 1
    assert assign_uniform(after(members, targets), partition_counts) == targets


@given(groups(equal=True), counts, member_ids)
@settings(max_examples=150, deadline=None)
def test_uniform_takes_only_what_a_new_member_needs(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int], newcomer: str
) -> None:
    members = after(members, assign_uniform(members, partition_counts))
    if newcomer in members:
        return
    grown = {**members, newcomer: Subscriber(None, next(iter(members.values())).topics)}
    targets = assign_uniform(grown, partition_counts)
    for name, member in members.items():
        assert targets[name] <= member.previous


@given(groups(equal=True), st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_range_gives_the_same_indexes_of_equal_topics(
    members: dict[str, Subscriber], partition_count: int
) -> None:
    targets = assign_range(members, dict.fromkeys(TOPICS, partition_count))
    for name, target in targets.items():
        by_topic = {topic: {index for t, index in target if t == topic} for topic in members[name].topics}
        assert all(indexes == by_topic[next(iter(by_topic))] for indexes in by_topic.values())
        for indexes in by_topic.values():
            assert not indexes or indexes == set(range(min(indexes), max(indexes) + 1))


def test_range_puts_static_members_first() -> None:
    topic = TOPICS[0]
    members = {
        "a": Subscriber(None, frozenset({topic})),
        "z": Subscriber("first", frozenset({topic})),
        "b": Subscriber(None, frozenset({topic})),
    }
    targets = assign_range(members, {topic: 4})
    assert {name: sorted(index for _, index in target) for name, target in targets.items()} == {
        "z": [0, 1],
        "a": [2],
        "b": [3],
    }


def test_a_group_without_members_has_no_targets() -> None:
    assert assign_uniform({}, {TOPICS[0]: 3}) == assign_range({}, {TOPICS[0]: 3}) == {}

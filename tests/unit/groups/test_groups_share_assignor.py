"""The assignor of share groups: everybody has something, everything has somebody, little moves."""

import random
from uuid import UUID

from tidelog.groups.consumer_schemas import Partitions
from tidelog.groups.share_assignor import ShareSubscriber, assign_simple

T, U = UUID(int=1), UUID(int=2)


def partitions(topic: UUID, count: int) -> Partitions:
    return frozenset((topic, index) for index in range(count))


def group(count: int, topics: frozenset[UUID] = frozenset({T})) -> dict[str, ShareSubscriber]:
    return {f"m{index:02}": ShareSubscriber(topics) for index in range(count)}


def readers(assigned: dict[str, Partitions]) -> dict[tuple[UUID, int], int]:
    counts: dict[tuple[UUID, int], int] = {}
    for target in assigned.values():
        for partition in target:
            counts[partition] = counts.get(partition, 0) + 1
    return counts


def test_more_members_than_partitions_share_them() -> None:
    assigned = assign_simple(group(8), partitions(T, 2))
    assert readers(assigned) == {(T, 0): 4, (T, 1): 4}
    assert {len(target) for target in assigned.values()} == {1}


def test_fewer_members_than_partitions_divide_them() -> None:
    assigned = assign_simple(group(3), partitions(T, 8))
    assert set(readers(assigned).values()) == {1}
    assert sorted(len(target) for target in assigned.values()) == [2, 3, 3]


def test_nobody_gets_what_has_no_state_yet() -> None:
    assert assign_simple(group(2), frozenset()) == {"m00": frozenset(), "m01": frozenset()}
    assert assign_simple({}, partitions(T, 2)) == {}


def test_with_differing_subscriptions_each_topic_is_spread_over_its_readers() -> None:
    members = {**group(2), "n": ShareSubscriber(frozenset({T, U})), "o": ShareSubscriber(frozenset())}
    assigned = assign_simple(members, partitions(T, 3) | partitions(U, 2))
    assert assigned["o"] == frozenset()
    assert {partition for partition in assigned["n"] if partition[0] == U} == partitions(U, 2)
    assert all(topic == T for topic, _ in assigned["m00"])
    assert set(readers(assigned)) == partitions(T, 3) | partitions(U, 2)


def test_members_keep_what_they_have() -> None:
    before = assign_simple(group(4), partitions(T, 4))
    members = {name: ShareSubscriber(frozenset({T}), target) for name, target in before.items()}
    assert assign_simple(members, partitions(T, 4)) == before
    members["n"] = ShareSubscriber(frozenset({T}))
    after = assign_simple(members, partitions(T, 4))
    assert all(before[name] <= after[name] for name in before)
    assert after["n"] != frozenset()


def test_whatever_happens_everybody_has_something_and_everything_somebody() -> None:
    chance = random.Random(5)
    for _ in range(300):
        everything = partitions(T, chance.randint(1, 9)) | partitions(U, chance.randint(0, 5))
        topics = frozenset({T, U})
        members = {
            name: ShareSubscriber(topics, frozenset(chance.sample(sorted(everything), chance.randint(0, 1))))
            for name in group(chance.randint(1, 25))
        }
        assigned = assign_simple(members, everything)
        assert set(readers(assigned)) == everything
        counts = readers(assigned).values()
        assert max(counts) == -(-len(members) // len(everything))
        sizes = [len(target) for target in assigned.values()]
        assert min(sizes) >= 1 or len(members) > len(everything) * max(counts)
        assert max(sizes) - min(sizes) <= 2

"""The client's member of a share group against a broker: acquired, acknowledged, renewed, lost, left."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import Refusal
from tidelog.client.share_member import AcquiredRange, ShareMember
from tidelog.client.share_requests import ACCEPT, RELEASE
from tidelog.model.errors import ErrorCode
from tidelog.testing.broker import RunningBroker

TOPIC, COUNT = "jobs", 90
PARTITIONS = 3
SECONDS_MAX = 30.0
#: the least there is without asking brokers for less
LOCK_MS = 1_000

Join = Callable[[str], ShareMember]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    settings = {
        "group.share.min.record.lock.duration.ms": str(LOCK_MS),
        "group.share.record.lock.duration.ms": str(LOCK_MS),
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    with RunningBroker(settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SECONDS_MAX)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(COUNT):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(SECONDS_MAX) == 0
        yield running


@pytest.fixture
def join(broker: RunningBroker, request: pytest.FixtureRequest) -> Iterator[Join]:
    """Members of one group that begins at the start."""
    group = request.node.name
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS_MAX)
    members: list[ShareMember] = []

    def make(member_id: str = "") -> ShareMember:
        settings = ClientSettings.from_options({"bootstrap.servers": broker.bootstrap})
        members.append(ShareMember(settings, group, [TOPIC], member_id or None))
        return members[-1]

    yield make
    for member in members:
        member.close()


def count_of(ranges: list[AcquiredRange]) -> int:
    return sum(one.records_count for one in ranges)


def acquire(member: ShareMember, count: int) -> list[AcquiredRange]:
    """At least so many records."""
    found: list[AcquiredRange] = []
    deadline = time.monotonic() + SECONDS_MAX
    while count_of(found) < count:
        assert time.monotonic() < deadline, found
        found += member.acquire(count - count_of(found), 200)
    return found


def test_records_are_acquired_once_and_accepted(join: Join) -> None:
    member = join("")
    found = acquire(member, COUNT)
    assert count_of(found) == COUNT
    assert {one.where.partition for one in found} == set(range(PARTITIONS))
    assert all(one.delivery_count == 1 for one in found)
    assert member.acquire(10, 0) == []
    assert member.acknowledge(ACCEPT, found) == []
    assert member.acknowledge(ACCEPT, found) == found, "they are not held any more"
    assert member.acquire(10, 100) == []


def test_the_limit_is_kept_and_what_is_released_comes_again(join: Join) -> None:
    member = join("")
    found = acquire(member, 7)
    assert count_of(found) == 7
    assert member.acknowledge(RELEASE, found) == []
    again = acquire(member, COUNT)
    assert count_of(again) == COUNT
    assert sum(one.records_count for one in again if one.delivery_count == 2) == 7


def test_locks_are_renewed_while_records_are_held(join: Join) -> None:
    first, second = join(""), join("")
    found = acquire(first, COUNT)
    deadline = time.monotonic() + 3 * LOCK_MS / 1000
    while time.monotonic() < deadline:
        assert second.acquire(10, 200) == []
    assert first.acknowledge(ACCEPT, found) == []


def test_what_a_member_held_that_left_is_others(join: Join) -> None:
    first, second = join(""), join("")
    found = acquire(first, COUNT)
    first.close()
    again = acquire(second, COUNT)
    assert count_of(again) == count_of(found) == COUNT
    assert all(one.delivery_count == 2 for one in again)
    assert first.acknowledge(ACCEPT, found) == found


def test_a_member_that_begins_anew_with_its_id_has_its_partitions_at_once(join: Join) -> None:
    first = join("one-and-the-same")
    acquire(first, COUNT)
    # As if its process had been killed: its connections end, and it does not leave.
    first._ended.set()
    first._cluster.close()
    second = join("one-and-the-same")
    again = acquire(second, COUNT)
    assert count_of(again) == COUNT
    assert len(second.assigned) == PARTITIONS


def test_partitions_can_be_passed_over(join: Join) -> None:
    member = join("")
    found = acquire(member, 1)
    rest = {where for where in member.assigned if where.partition != 0}
    member.acknowledge(RELEASE, found)
    deadline = time.monotonic() + SECONDS_MAX
    seen: list[AcquiredRange] = []
    while count_of(seen) < COUNT // PARTITIONS:
        assert time.monotonic() < deadline
        seen += member.acquire(COUNT, 200, rest)
    assert {one.where.partition for one in seen} == {0}


def test_what_cannot_be_mended_is_raised(broker: RunningBroker) -> None:
    settings = ClientSettings.from_options({"bootstrap.servers": broker.bootstrap})
    with (
        ShareMember(settings, "named", [TOPIC], "an-id-of-more-than-36-characters-is-refused") as member,
        pytest.raises(Refusal) as refused,
    ):
        member.acquire(1, 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST

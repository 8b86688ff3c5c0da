"""Metadata records and the image they add up to."""

from random import Random
from uuid import UUID

import pytest

from tidelog.model.identifiers import LOST_DIRECTORY, MIGRATING_DIRECTORY
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    Endpoint,
    MetadataCorruptError,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    record_from_entry,
)

ORDERS = UUID(int=1 << 100, version=4)


def partition(index: int, topic: str = "orders", leader: int = 1) -> PartitionRecord:
    return PartitionRecord(topic, index, leader, 0, (leader, 2), (leader,))


def with_orders(partition_count: int = 3) -> ClusterImage:
    records: list[MetadataRecord] = [
        BrokerRecord(1, {"PLAINTEXT": Endpoint("one", 9092)}, "rack"),
        TopicRecord("orders", ORDERS),
        *(partition(index) for index in range(partition_count)),
    ]
    return ClusterImage().apply(records)


@pytest.mark.parametrize(
    "record",
    [
        ClusterRecord("abc"),
        ControllerRecord(3, 9),
        BrokerRecord(2, {"A": Endpoint("host", 1), "B": Endpoint("::1", 2)}, None),
        BrokerRecord(2, {}, "rack-é"),
        BrokerRecord(2, {}, None, 7, "life-1", alive=False, shutting_down=True),
        BrokerRecord(2, {}, directories=("disk-1", "disk-2"), offline_directories=2),
        TopicRecord("orders", ORDERS),
        PartitionRecord("orders", 12, -1, 4, (3, 1, 2), (), 7),
        PartitionRecord("orders", 2, 1, 4, (3, 1, 2), (1,), 7, (3,), (2,)),
        PartitionRecord("orders", 2, -1, 4, (3, 1, 2), (1,), 7, directories=("disk-3", "disk-1", "disk-2")),
        ConfigRecord(TOPIC_RESOURCE, "orders", {"retention.ms": "5"}),
        ConfigRecord(TOPIC_RESOURCE, "default", {"retention.ms": "5"}),
        ConfigRecord(BROKER_RESOURCE, "7", {"log.retention.ms": "5"}),
        ConfigRecord(BROKER_RESOURCE, ALL_BROKERS, {"log.retention.ms": "5"}),
        ProducerIdsRecord(1, 4000),
    ],
    ids=repr,
)
def test_a_record_survives_the_store(record: MetadataRecord) -> None:
    [(key, value)] = record.writes()
    assert value is not None
    assert record_from_entry(key, value) == record


def test_what_older_versions_stored_still_reads() -> None:
    broker = record_from_entry("brokers/2", b'{"endpoints":{"A":["host",1]},"rack":null}')
    assert broker == BrokerRecord(2, {"A": Endpoint("host", 1)}) and broker.alive and not broker.shutting_down
    partition_value = b'{"leader":1,"leader_epoch":2,"replicas":[1],"isr":[1],"partition_epoch":3}'
    read = record_from_entry("partitions/a/0", partition_value)
    assert read == PartitionRecord("a", 0, 1, 2, (1,), (1,), 3)
    assert [value for _, value in read.writes()] == [
        b'{"isr":[1],"leader":1,"leader_epoch":2,"partition_epoch":3,"replicas":[1]}'
    ]
    broker_value = b'{"endpoints":{},"rack":null,"disk_id":"disk-1"}'
    assert record_from_entry("brokers/2", broker_value) == BrokerRecord(
        2, {}, directories=("disk-1", MIGRATING_DIRECTORY)
    )
    lost_value = (
        b'{"leader":-1,"leader_epoch":2,"replicas":[2,1],"isr":[1],"partition_epoch":3,'
        b'"lost_disk_id":"disk-1"}'
    )
    assert record_from_entry("partitions/a/0", lost_value) == PartitionRecord(
        "a", 0, -1, 2, (2, 1), (), 3, directories=(MIGRATING_DIRECTORY, "disk-1"), elr=(1,)
    )
    assert record_from_entry("controller", b'{"broker_id":1,"epoch":4}') == ControllerRecord(1, 4)
    assert [key for key, _ in ControllerRecord(1, 4).writes()] == ["controller-epoch"]


def test_dead_brokers_stay_registered() -> None:
    image = with_orders(0).apply([BrokerRecord(2, {}), BrokerRecord(1, {}, alive=False)])
    image.check_invariants()
    assert set(image.brokers) == {1, 2} and set(image.alive_brokers) == {2}
    assert image.apply([RemoveBrokerRecord(2)]).alive_brokers == {}
    assert image.apply([ProducerIdsRecord(1, 1)]).alive_brokers is image.alive_brokers


def test_a_partition_knows_where_its_reassignment_leads() -> None:
    image = with_orders().apply([PartitionRecord("orders", 0, 1, 0, (3, 1, 2), (1, 2), 1, (3,), (2,))])
    image.check_invariants()
    moving, still = image.topics["orders"].partitions[:2]
    assert moving.reassigning and moving.target_replicas == (3, 1)
    assert not still.reassigning and still.target_replicas == still.replicas


@pytest.mark.parametrize(
    "record",
    [
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1, 1)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1, 3)),
        PartitionRecord("orders", 0, 2, 0, (1, 2), (1,)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1,), adding=(3,)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1,), removing=(1, 2)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1,), adding=(2,), removing=(2,)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1,), directories=("disk",)),
        PartitionRecord("orders", 0, 1, 0, (1, 2), (1,), directories=(LOST_DIRECTORY, "disk")),
        BrokerRecord(1, {}, alive=False),
    ],
    ids=repr,
)
def test_impossible_partitions_are_noticed(record: MetadataRecord) -> None:
    with pytest.raises(AssertionError):
        with_orders().apply([record]).check_invariants()


def test_removals_end_their_keys() -> None:
    assert RemoveBrokerRecord(4).writes() == (("brokers/4", None),)
    keys = dict(RemoveTopicRecord("orders", ORDERS, 2, configured=True).writes())
    assert keys == dict.fromkeys(
        ["topics/orders", "partitions/orders/0", "partitions/orders/1", "configs/topics/orders"]
    )
    assert ConfigRecord(TOPIC_RESOURCE, "orders", {}).writes() == (("configs/topics/orders", None),)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/a", b"not json"),
        ("topics/a", b"{}"),
        ("topics/a", b'{"id":"zz"}'),
        ("partitions/a/x", b"{}"),
        ("partitions/a/0", b'{"leader":"1","leader_epoch":0,"replicas":[1],"isr":[1],"partition_epoch":0}'),
        ("partitions/a/0", b'{"leader":1,"leader_epoch":0,"replicas":1,"isr":[1],"partition_epoch":0}'),
        ("brokers/1", b'{"endpoints":[],"rack":null}'),
        ("unknown/1", b"{}"),
        ("cluster", b"[1]"),
    ],
)
def test_damaged_entries_are_named(key: str, value: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match=key):
        record_from_entry(key, value)


def test_apply_makes_a_new_image_and_leaves_the_old_alone() -> None:
    before = with_orders()
    after = before.apply(
        [
            ConfigRecord(TOPIC_RESOURCE, "orders", {"retention.ms": "5"}),
            PartitionRecord("orders", 1, 2, 5, (1, 2), (2,)),
        ]
    )
    assert (before.topics["orders"].configs, after.topics["orders"].configs) == ({}, {"retention.ms": "5"})
    assert before.partition("orders", 1).leader == 1  # type: ignore[union-attr]
    assert after.partition("orders", 1).leader == 2  # type: ignore[union-attr]
    assert after.version == before.version + 1
    assert after.topic_by_id(ORDERS) is after.topics["orders"]
    for image in (before, after):
        image.check_invariants()


def test_unchanged_parts_are_shared() -> None:
    before = with_orders()
    after = before.apply([ProducerIdsRecord(1, 1000)])
    assert after.topics is before.topics and after.brokers is before.brokers
    assert after.next_producer_id == 1000


def test_a_topic_grows_and_goes() -> None:
    image = with_orders(2).apply([partition(2), partition(3)])
    assert (len(image.topics["orders"].partitions), image.partition_count) == (4, 4)
    image = image.apply([RemoveTopicRecord("orders", ORDERS, 4)])
    image.check_invariants()
    assert (dict(image.topics), dict(image.topic_names_by_id), image.partition_count) == ({}, {}, 0)
    assert image.partition("orders", 0) is None


def test_a_topic_can_go_and_come_back_in_one_apply() -> None:
    again = UUID(int=5 << 90, version=4)
    image = with_orders().apply(
        [RemoveTopicRecord("orders", ORDERS, 3), TopicRecord("orders", again), partition(0)]
    )
    image.check_invariants()
    assert image.topics["orders"].topic_id == again and image.partition_count == 1


def test_broker_settings_come_and_go() -> None:
    image = with_orders().apply([ConfigRecord(BROKER_RESOURCE, "1", {"log.retention.ms": "5"})])
    assert dict(image.broker_configs["1"]) == {"log.retention.ms": "5"}
    assert dict(image.apply([ConfigRecord(BROKER_RESOURCE, "1", {})]).broker_configs) == {}
    assert dict(image.apply([RemoveBrokerRecord(1)]).brokers) == {}


def test_internal_topics_are_known_by_name() -> None:
    image = ClusterImage().apply(
        [TopicRecord("__consumer_offsets", ORDERS), partition(0, "__consumer_offsets")]
    )
    assert image.topics["__consumer_offsets"].internal
    assert not with_orders().topics["orders"].internal


def test_random_histories_keep_the_invariants() -> None:
    random = Random(7)
    image = ClusterImage()
    for _ in range(300):
        name = f"t{random.randrange(8)}"
        topic = image.topics.get(name)
        if topic is None:
            records: list[MetadataRecord] = [TopicRecord(name, UUID(int=random.getrandbits(128), version=4))]
            records += [partition(index, name) for index in range(random.randint(1, 4))]
        elif random.random() < 0.5:
            records = [RemoveTopicRecord(name, topic.topic_id, len(topic.partitions))]
        else:
            records = [partition(random.randrange(len(topic.partitions) + 1), name)]
        image = image.apply(records)
        image.check_invariants()
    assert image.version == 300

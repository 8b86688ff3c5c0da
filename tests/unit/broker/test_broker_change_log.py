"""The change log and snapshots: every record there and back, commits between reads, decisions cut to size."""

import zlib
from uuid import UUID

import pytest

from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tidelog.broker.metadata.change_log import (
    change_key,
    decode_change,
    encode_change,
    read_changes,
    read_snapshot,
    split,
)
from tidelog.coordination.store import Entry, Write
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import (
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
)

TOPIC_ID = UUID(int=7)
RECORDS: list[MetadataRecord] = [
    ClusterRecord("c"),
    ControllerRecord(3, 9),
    BrokerRecord(1, {"PLAINTEXT": Endpoint("höst", 1)}, "rack", 4, "life", True, False, ("disk",)),
    RemoveBrokerRecord(2),
    TopicRecord("t.x_y-z", TOPIC_ID),
    PartitionRecord("t.x_y-z", 0, 1, 5, (1, 2, 3), (1, 3), 6, (3,), (2,)),
    ConfigRecord("topics", "t.x_y-z", {"a": 'tab\t "quote" \n newline'}),
    ConfigRecord("topics", "t.x_y-z", {}),
    ConfigRecord("brokers", "", {"a": "b"}),
    ConfigRecord("brokers", "1", {}),
    ProducerIdsRecord(1, 2000),
    RemoveTopicRecord("t.x_y-z", TOPIC_ID, 12, True),
]


def lines_of(records: list[MetadataRecord]) -> list[bytes]:
    return [line for part in split(records, 10_000, 1 << 30) for line in part.lines]


def commit(store: SimulatedStore, sequence: int, records: list[MetadataRecord]) -> None:
    """What a controller commits."""
    writes = {key: value for record in records for key, value in record.writes()}
    writes[change_key(sequence)] = encode_change(lines_of(records))
    writes["changes"] = b"%d" % sequence
    store.commit([Write(key, value) for key, value in writes.items()])


def test_every_record_comes_back() -> None:
    assert decode_change(encode_change(lines_of(RECORDS))) == RECORDS
    assert decode_change(encode_change([])) == []


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        zlib.compress(b"+topics/t\t{"),
        zlib.compress(b"-topics/t\t{}"),
        zlib.compress(b"-brokers/x\t"),
    ],
)
def test_a_damaged_change_is_told(value: bytes) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_change(value)


def test_changes_are_read_in_order_and_gaps_are_told() -> None:
    store = SimulatedStore()
    assert read_changes(store, 0) == (0, [])
    for sequence in (1, 2, 3):
        commit(store, sequence, [ProducerIdsRecord(1, 1000 * sequence)])
    assert read_changes(store, 3) == (3, [])
    assert read_changes(store, 1) == (3, [ProducerIdsRecord(1, 2000), ProducerIdsRecord(1, 3000)])
    store.commit([Write(change_key(2), None)])
    assert read_changes(store, 1) is None
    assert read_changes(store, 4) is None, "a log that is shorter than what we know is another log"


class DisturbedStore:
    """A store in which something is committed between the reads of a snapshot."""

    def __init__(
        self, store: SimulatedStore, disturb_before: str, records: list[list[MetadataRecord]]
    ) -> None:
        self._store = store
        self._rival = store.cluster.open()
        self._disturb_before = disturb_before
        self._records = records

    def get(self, key: str) -> Entry | None:
        return self._store.get(key)

    def load(self, prefix: str = "") -> list[Entry]:
        if prefix == self._disturb_before:
            while self._records:
                last = self._store.get("changes")
                commit(self._rival, (0 if last is None else int(last.value)) + 1, self._records.pop(0))
        return self._store.load(prefix)


@pytest.mark.parametrize("disturb_before", ["brokers/", "topics/", "partitions/", "configs/"])
def test_a_snapshot_shows_one_moment_whatever_is_committed_meanwhile(disturb_before: str) -> None:
    cluster = SimulatedCluster()
    store = cluster.open()
    old: list[MetadataRecord] = [
        ClusterRecord("c"),
        TopicRecord("old", UUID(int=1)),
        *(PartitionRecord("old", index, 1, 0, (1,), (1,)) for index in range(12)),
        ConfigRecord("topics", "old", {"a": "b"}),
    ]
    commit(store, 1, old)
    meanwhile: list[list[MetadataRecord]] = [
        [TopicRecord("new", UUID(int=2)), *(PartitionRecord("new", i, 1, 0, (1,), (1,)) for i in range(11))],
        [RemoveTopicRecord("old", UUID(int=1), 12, True)],
        [ConfigRecord("topics", "new", {"x": "y"})],
    ]
    snapshot = read_snapshot(DisturbedStore(store, disturb_before, meanwhile))  # type: ignore[arg-type]
    quiet = read_snapshot(store)
    image, expected = (ClusterImage().apply(found.records) for found in (snapshot, quiet))
    image.check_invariants()
    assert snapshot.sequence == quiet.sequence == 4
    assert image == expected and list(image.topics) == ["new"] and image.topics["new"].configs == {"x": "y"}


def test_decisions_are_cut_in_order() -> None:
    records: list[MetadataRecord] = [
        TopicRecord("t", TOPIC_ID),
        *(PartitionRecord("t", index, 1, 0, (1,), (1,)) for index in range(25)),
    ]
    parts = split(records, 10, 1 << 20)
    assert [len(part.writes) for part in parts] == [10, 10, 6]
    assert [record for part in parts for record in part.records] == records
    image = ClusterImage()
    for part in parts:
        image = image.apply(part.records)
        image.check_invariants()
    by_size = split(records, 1_000, 500)
    assert len(by_size) > 3 and [record for part in by_size for record in part.records] == records
    assert all(
        sum(len(key) + len(value or b"") for key, value in part.writes.items()) <= 500 for part in by_size
    )


def test_a_large_removal_takes_the_topic_first() -> None:
    [first, second, third] = split([RemoveTopicRecord("t", TOPIC_ID, 25)], 10, 1 << 20)
    assert next(iter(first.writes)) == "topics/t" and len(first.records) == 1
    assert not second.records and not third.records and len(third.writes) == 6


def test_the_last_write_of_a_key_counts() -> None:
    [part] = split([ProducerIdsRecord(1, 1000), ProducerIdsRecord(1, 2000)], 10, 1 << 20)
    assert list(part.writes) == ["producer-ids"] and b"2000" in (part.writes["producer-ids"] or b"")
    assert len(part.records) == 2

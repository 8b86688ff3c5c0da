"""The transaction APIs through dispatch and codec in every version, on a node with a simulated disk."""

import importlib
import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from tests.support.kio_entities import build
from tests.unit.broker.node import START_MS, NodeUnderTest, joined
from tidelog.broker.coordinators.transaction_markers import MarkerWriter
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.requests.request import PendingAnswer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.protocol.primitives import compact_string, string, unsigned_varint
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.transactions.machine import TransactionMachine

ROWS = {row.module: row for row in APIS.values()}
SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": "2",
    "transaction_state_log_num_partitions": "2",
    "tidelog_parked_requests_max": "100",
}
TX = "tx"


def versions(module: str) -> range:
    return range(ROWS[module].min_version, ROWS[module].max_version + 1)


def ask(node: NodeUnderTest, module: str, version: int, **fields: Any) -> Any:
    row = ROWS[module]
    message = messages._message_class(module, version, "request")
    out = io.BytesIO()
    entity_writer(message)(out, build(message)(fields))
    header = struct.pack(">hhih", row.key, version, 5, 4) + b"test"
    answer = node.handle(header + (b"\x00" if row.flexible(version) else b"") + out.getvalue())
    if isinstance(answer, PendingAnswer) and answer.chunks is None:
        node.advance(0)
    frame = joined(answer)
    schema = importlib.import_module(f"kio.schema.{module}.v{version}.response")
    name = "".join(word.capitalize() for word in module.split("_")) + "Response"
    start = 8 + (1 if row.flexible(version) else 0)
    body, size = entity_reader(getattr(schema, name))(memoryview(frame), start)
    assert start + size == len(frame)
    return body


@pytest.fixture
def node() -> NodeUnderTest:
    node = NodeUnderTest(**SETTINGS)
    node.create_topic("t", 2)
    assert not ask(node, "find_coordinator", 3, key=TX, key_type=1).error_code
    assert not ask(node, "find_coordinator", 3, key="g", key_type=0).error_code
    return node


def restarted(node: NodeUnderTest) -> NodeUnderTest:
    """The same disk under a new process; what was written is there, as after kill -9."""
    again = NodeUnderTest(node.disk.kill(), node.store.reopen(), **SETTINGS)
    again.clock.time_ms = node.clock.time_ms
    again.advance(0)
    return again


def init(node: NodeUnderTest, version: int = 5, timeout_ms: int = 60_000, **fields: Any) -> Any:
    answer = ask(
        node,
        "init_producer_id",
        version,
        transactional_id=TX,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        **fields,
    )
    return int(answer.error_code), answer.producer_id, answer.producer_epoch


def add(node: NodeUnderTest, pid: int, epoch: int, *partitions: int, version: int = 3) -> list[int]:
    topics = ({"name": "t", "partitions": partitions or (0,)},)
    if version < 4:
        answer = ask(
            node,
            "add_partitions_to_txn",
            version,
            v3_and_below_transactional_id=TX,
            v3_and_below_producer_id=pid,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        (topic,) = answer.results_by_topic_v3_and_below
    else:
        one = {"transactional_id": TX, "producer_id": pid, "producer_epoch": epoch, "topics": topics}
        answer = ask(node, "add_partitions_to_txn", version, transactions=(one,))
        (topic,) = answer.results_by_transaction[0].topic_results
    return [int(row.partition_error_code) for row in topic.results_by_partition]


def end(node: NodeUnderTest, pid: int, epoch: int, committed: bool = True, version: int = 4) -> Any:
    answer = ask(
        node,
        "end_txn",
        version,
        transactional_id=TX,
        producer_id=pid,
        producer_epoch=epoch,
        committed=committed,
    )
    return (
        int(answer.error_code)
        if version < 5
        else (int(answer.error_code), answer.producer_id, answer.producer_epoch)
    )


def produce(
    node: NodeUnderTest,
    pid: int,
    epoch: int,
    sequence: int = 0,
    *,
    version: int = 9,
    transactional_id: str | None = TX,
    value: bytes = b"x",
) -> int:
    """Produce one transactional batch to t-0; return the error."""
    records = build_batch(
        [Record(0, START_MS, None, value, ())],
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    header = struct.pack(">hhih", 0, version, 77, 4) + b"test"
    if version >= 9:
        name = b"\x00" if transactional_id is None else compact_string(transactional_id)
        frame = header + b"\x00" + name + struct.pack(">hi", -1, 1000) + b"\x02" + compact_string("t")
        frame += (
            b"\x02" + struct.pack(">i", 0) + unsigned_varint(len(records) + 1) + records + b"\x00\x00\x00"
        )
        answer = joined(node.handle(frame))
        (error,) = struct.unpack_from(">h", answer, 9 + 1 + 2 + 1 + 4)
    else:
        name = b"\xff\xff" if transactional_id is None else string(transactional_id)
        frame = header + name + struct.pack(">hii", -1, 1000, 1) + string("t")
        frame += struct.pack(">iii", 1, 0, len(records)) + records
        answer = joined(node.handle(frame))
        (error,) = struct.unpack_from(">h", answer, 8 + 4 + 3 + 4 + 4)
    return int(error)


def partition(node: NodeUnderTest, index: int = 0, topic: str = "t") -> Partition:
    found = node.broker.replicas.leader(topic, index)
    assert found is not None
    return found


def state(node: NodeUnderTest) -> str:
    machine = node.broker.transactions.get().coordinator.machine_for(TX)
    assert isinstance(machine, TransactionMachine)
    return str(machine.transactions[TX].state)


# Ids and epochs


@pytest.mark.parametrize("version", versions("init_producer_id"))
def test_init_producer_id_in_every_version(node: NodeUnderTest, version: int) -> None:
    error, pid, epoch = init(node, version)
    assert (error, epoch) == (0, 0)
    assert init(node, version) == (0, pid, 1)
    assert init(node, version, timeout_ms=900_001)[0] == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if version >= 3:
        assert init(node, version, producer_id=pid, producer_epoch=1) == (0, pid, 2)
        fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert init(node, version, producer_id=pid, producer_epoch=0)[0] == fenced
        assert init(node, version, producer_id=pid, producer_epoch=-1)[0] == ErrorCode.INVALID_REQUEST


def test_find_coordinator_makes_the_topic_once() -> None:
    node = NodeUnderTest(**SETTINGS)
    assert init(node)[0] == ErrorCode.NOT_COORDINATOR
    (found,) = ask(node, "find_coordinator", 4, key_type=1, coordinator_keys=(TX,)).coordinators
    assert (int(found.error_code), found.node_id) == (0, 1)
    assert len(node.broker.image.topics["__transaction_state"].partitions) == 2
    assert init(node)[0] == 0


@pytest.mark.parametrize("version", versions("add_partitions_to_txn"))
def test_adding_in_every_version(node: NodeUnderTest, version: int) -> None:
    _, pid, epoch = init(node)
    assert add(node, pid, epoch, 0, 1, version=version) == [0, 0]
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(node, pid, epoch + 1, version=version) == [fenced]
    assert add(node, pid + 1, epoch, version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert add(node, pid, epoch, 1, 9, version=version) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_verifying_for_other_brokers(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0)
    one = {
        "transactional_id": TX,
        "producer_id": pid,
        "producer_epoch": epoch,
        "verify_only": True,
        "topics": ({"name": "t", "partitions": (0, 1)},),
    }
    (result,) = ask(node, "add_partitions_to_txn", 4, transactions=(one,)).results_by_transaction
    rows = {r.partition_index: r.partition_error_code for r in result.topic_results[0].results_by_partition}
    assert rows == {0: 0, 1: ErrorCode.TRANSACTION_ABORTABLE}


# Writing and ending


@pytest.mark.parametrize("version", versions("end_txn"))
@pytest.mark.parametrize("committed", [True, False])
def test_ending_in_every_version(node: NodeUnderTest, version: int, committed: bool) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0, 1)
    assert produce(node, pid, epoch) == 0
    assert partition(node).last_stable_offset == 0
    answer = end(node, pid, epoch, committed, version)
    assert answer == (0 if version < 5 else (0, pid, epoch + 1))
    assert end(node, pid, epoch, committed, version) == answer, "a retry"
    assert partition(node).last_stable_offset == 2
    assert partition(node, 1).log.log_end_offset == 1, "a marker where nothing was written"
    aborted = partition(node).log.aborted_transactions(0, 10)
    assert [entry.producer_id for entry in aborted] == ([] if committed else [pid])
    assert state(node) == ("CompleteCommit" if committed else "CompleteAbort")
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    refused = end(node, pid, epoch + 5, committed, version)
    assert (refused if version < 5 else refused[0]) == fenced


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (7, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_batches_of_partitions_that_were_not_added(
    node: NodeUnderTest, version: int, error: ErrorCode
) -> None:
    _, pid, epoch = init(node)
    assert produce(node, pid, epoch, version=version) == error
    add(node, pid, epoch)
    assert produce(node, pid, epoch, version=version) == 0
    assert produce(node, pid, epoch, 1, version=version) == 0
    end(node, pid, epoch)
    assert produce(node, pid, epoch, 2, version=version) == error, "late, after the end"
    assert partition(node).last_stable_offset == partition(node).log.log_end_offset


def test_produce_12_adds_the_partition(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    assert produce(node, pid, epoch, version=12) == 0
    assert state(node) == "Ongoing"
    assert produce(node, pid, epoch, 1, version=12) == 0
    assert end(node, pid, epoch, version=5) == (0, pid, epoch + 1)
    assert produce(node, pid, epoch, 2, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(node, pid, epoch + 1, version=12) == 0
    assert end(node, pid, epoch + 1, False, version=5) == (0, pid, epoch + 2)


def test_a_lost_first_batch_is_noticed(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    assert produce(node, pid, epoch, 3, version=12) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state(node) == "Ongoing", "the partition was added before its log looked at the batch"
    assert partition(node).log.log_end_offset == 0


@pytest.mark.parametrize("version", [8, 9, 12])
def test_transactional_batches_need_the_transactional_id(node: NodeUnderTest, version: int) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert produce(node, pid, epoch, version=version, transactional_id=None) == refused
    assert produce(node, pid, epoch, version=version) == 0
    assert produce(node, pid, epoch, 1, version=version, transactional_id=None) == refused


def test_verification_can_be_switched_off() -> None:
    node = NodeUnderTest(**SETTINGS, transaction_partition_verification_enable="false")
    node.create_topic("t", 2)
    ask(node, "find_coordinator", 3, key=TX, key_type=1)
    _, pid, epoch = init(node)
    assert produce(node, pid, epoch) == 0
    assert produce(node, pid, epoch, 1) == 0


def test_a_zombie_is_fenced_everywhere(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    assert init(node)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert init(node) == (0, pid, epoch + 2)
    assert produce(node, pid, epoch, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert add(node, pid, epoch) == [ErrorCode.PRODUCER_FENCED]
    assert end(node, pid, epoch) == ErrorCode.PRODUCER_FENCED
    assert partition(node).last_stable_offset == 2


def test_a_transaction_times_out(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node, timeout_ms=5_000)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    node.advance(10_001)
    assert state(node) == "CompleteAbort"
    assert partition(node).last_stable_offset == 2
    assert produce(node, pid, epoch, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_unused_ids_are_forgotten(node: NodeUnderTest) -> None:
    init(node)
    for _ in range(24 * 7 + 1):
        node.advance(3_600_000)
    (found,) = ask(node, "describe_transactions", 0, transactional_ids=(TX,)).transaction_states
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# Offsets


def commit_offsets(node: NodeUnderTest, pid: int, epoch: int, version: int, offset: int = 7) -> list[int]:
    parts = ({"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"},)
    answer = ask(
        node,
        "txn_offset_commit",
        version,
        transactional_id=TX,
        group_id="g",
        producer_id=pid,
        producer_epoch=epoch,
        topics=({"name": "t", "partitions": parts}, {"name": "nowhere", "partitions": parts}),
    )
    return [int(part.error_code) for topic in answer.topics for part in topic.partitions]


def committed_offset(node: NodeUnderTest, *, require_stable: bool = False) -> tuple[int, int]:
    topics = ({"name": "t", "partition_indexes": (0,)},)
    answer = ask(
        node, "offset_fetch", 9, groups=({"group_id": "g", "topics": topics},), require_stable=require_stable
    )
    (part,) = answer.groups[0].topics[0].partitions
    return int(part.error_code), part.committed_offset


@pytest.mark.parametrize("version", versions("txn_offset_commit"))
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_wait_for_the_end(node: NodeUnderTest, version: int, committed: bool) -> None:
    _, pid, epoch = init(node)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version < 5:
        late = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
        assert commit_offsets(node, pid, epoch, version) == [late, unknown]
        fields = {"transactional_id": TX, "producer_id": pid, "producer_epoch": epoch, "group_id": "g"}
        assert not ask(node, "add_offsets_to_txn", 4, **fields).error_code
    assert commit_offsets(node, pid, epoch, version) == [0, unknown]
    assert committed_offset(node) == (0, -1)
    assert committed_offset(node, require_stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    node = restarted(node)
    assert committed_offset(node, require_stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    end(node, pid, epoch, committed)
    expected = (0, 7 if committed else -1)
    assert committed_offset(node, require_stable=True) == expected
    assert committed_offset(restarted(node), require_stable=True) == expected


@pytest.mark.parametrize("version", versions("add_offsets_to_txn"))
def test_adding_offsets_in_every_version(node: NodeUnderTest, version: int) -> None:
    _, pid, epoch = init(node)
    fields = {"transactional_id": TX, "producer_id": pid, "producer_epoch": epoch, "group_id": "g"}
    assert not ask(node, "add_offsets_to_txn", version, **fields).error_code
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    refused = ask(node, "add_offsets_to_txn", version, **{**fields, "producer_epoch": epoch + 1})
    assert refused.error_code == fenced


def test_offsets_of_an_unknown_generation(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    answer = ask(
        node,
        "txn_offset_commit",
        5,
        transactional_id=TX,
        group_id="g",
        producer_id=pid,
        producer_epoch=epoch,
        generation_id=3,
        member_id="m",
        topics=({"name": "t", "partitions": (part,)},),
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION


# Restarts, and partitions that do not take their marker


@pytest.mark.parametrize("committed", [True, False])
def test_a_crash_between_the_decision_and_the_markers(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0, 1)
    produce(node, pid, epoch)
    with monkeypatch.context() as without_markers:
        refuse = lambda *arguments: arguments[-1](ErrorCode.NOT_LEADER_OR_FOLLOWER)  # noqa: E731
        without_markers.setattr(MarkerWriter, "write", refuse)
        assert end(node, pid, epoch, committed) == 0
        assert state(node) == ("PrepareCommit" if committed else "PrepareAbort")
        assert end(node, pid, epoch, committed) == ErrorCode.CONCURRENT_TRANSACTIONS
    node = restarted(node)
    assert state(node) == ("CompleteCommit" if committed else "CompleteAbort")
    assert partition(node).last_stable_offset == 2
    assert bool(partition(node).log.aborted_transactions(0, 9)) is not committed


def test_a_crash_between_the_markers_and_the_completion(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    append = Partition.append_internal
    with monkeypatch.context() as full_disk:

        def refuse_completion(self: Partition, records: Any, now_ms: int, **fields: Any) -> Any:
            if self.topic == "__transaction_state" and partition(node).log.log_end_offset == 2:
                return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
            return append(self, records, now_ms, **fields)

        full_disk.setattr(Partition, "append_internal", refuse_completion)
        assert end(node, pid, epoch) == 0
        assert state(node) == "PrepareCommit" and partition(node).last_stable_offset == 2
    node = restarted(node)
    assert state(node) == "CompleteCommit"
    assert partition(node).log.log_end_offset == 3, "a second marker does no harm"
    assert init(node) == (0, pid, epoch + 1)


def test_markers_that_are_refused_are_sent_again(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0, 1)
    produce(node, pid, epoch)
    write = MarkerWriter.write
    refusals: list[Any] = []

    def refuse_once(writer: MarkerWriter, place: TopicPartition, marker: Any, then: Any) -> None:
        if place.partition == 1 and not refusals:
            refusals.append(place)
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            write(writer, place, marker, then)

    monkeypatch.setattr(MarkerWriter, "write", refuse_once)
    end(node, pid, epoch)
    assert state(node) == "PrepareCommit"
    assert partition(node).log.log_end_offset == 2 and partition(node, 1).log.log_end_offset == 0
    node.advance(200)
    assert state(node) == "CompleteCommit"
    assert partition(node).log.log_end_offset == 2 and partition(node, 1).log.log_end_offset == 1


def test_an_open_transaction_survives_a_restart(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    node = restarted(node)
    assert state(node) == "Ongoing"
    assert produce(node, pid, epoch, 1) == 0
    assert end(node, pid, epoch) == 0
    assert partition(node).last_stable_offset == 3


# Administration


@pytest.mark.parametrize("version", versions("list_transactions"))
def test_listing(node: NodeUnderTest, version: int) -> None:
    _, pid, epoch = init(node)

    def listed(**filters: Any) -> list[tuple[str, int, str]]:
        answer = ask(
            node, "list_transactions", version, **{"state_filters": (), "producer_id_filters": (), **filters}
        )
        assert not answer.error_code
        assert tuple(answer.unknown_state_filters) == tuple(
            name for name in filters.get("state_filters", ()) if name == "Strange"
        )
        return [
            (item.transactional_id, item.producer_id, item.transaction_state)
            for item in answer.transaction_states
        ]

    add(node, pid, epoch)
    ongoing = [(TX, pid, "Ongoing")]
    assert listed() == ongoing
    assert listed(state_filters=("Ongoing", "Strange"), producer_id_filters=(pid,)) == ongoing
    assert listed(state_filters=("Empty",)) == [] and listed(producer_id_filters=(pid + 1,)) == []
    if version >= 1:
        node.advance(5)
        assert listed(duration_filter=4) == ongoing and listed(duration_filter=5) == []
    if version >= 2:
        assert listed(transactional_id_pattern="t.") == ongoing
        assert listed(transactional_id_pattern="t") == []
        broken = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": "("}
        refused = ask(node, "list_transactions", version, **broken)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_describing(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0, 1)
    found, missing, empty = ask(
        node, "describe_transactions", 0, transactional_ids=(TX, "nobody", "")
    ).transaction_states
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", pid, epoch)
    assert found.transaction_timeout == timedelta(seconds=60)
    assert round(found.transaction_start_time.timestamp() * 1000) == node.clock.now_ms()
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", (0, 1))]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions("write_txn_markers"))
def test_markers_from_elsewhere(node: NodeUnderTest, version: int) -> None:
    init(node)
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    marker = {
        "producer_id": pid,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": ({"name": "t", "partition_indexes": (0, 9)},),
        "coordinator_epoch": 0,
    }
    (result,) = ask(node, "write_txn_markers", version, markers=(marker,)).markers
    errors = {row.partition_index: row.error_code for row in result.topics[0].partitions}
    assert errors == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert partition(node).last_stable_offset == 2
    (stale,) = ask(
        node, "write_txn_markers", version, markers=({**marker, "producer_epoch": epoch - 1},)
    ).markers
    assert stale.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_late_copy_of_a_v2_marker_does_not_end_the_next_transaction(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    produce(node, pid, epoch, version=12)
    end(node, pid, epoch, version=5)
    produce(node, pid, epoch + 1, version=12)
    late = {
        "producer_id": pid,
        "producer_epoch": epoch + 1,
        "transaction_result": True,
        "topics": ({"name": "t", "partition_indexes": (0,)},),
        "coordinator_epoch": 0,
        "transaction_version": 2,
    }
    (result,) = ask(node, "write_txn_markers", 2, markers=(late,)).markers
    assert result.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition(node).last_stable_offset == 2


def test_a_marker_is_flushed_where_the_topic_asks_for_it() -> None:
    node = NodeUnderTest(**SETTINGS)
    node.create_topic("t", 2, flush_messages="1")
    ask(node, "find_coordinator", 3, key=TX, key_type=1)
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    assert produce(node, pid, epoch) == 0
    end(node, pid, epoch)
    assert partition(node).log.recovery_point == partition(node).log.log_end_offset == 2


def test_read_committed_waiters_wake_at_the_marker(node: NodeUnderTest) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch)
    produce(node, pid, epoch)
    frame = (
        struct.pack(">hhih", 1, 4, 78, 4)
        + b"test"
        + struct.pack(">iiiib", -1, 5_000, 1, 1 << 20, 1)
        + struct.pack(">i", 1)
        + string("t")
        + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    )
    waiting = node.handle(frame)
    assert isinstance(waiting, PendingAnswer) and waiting.chunks is None
    end(node, pid, epoch)
    assert waiting.chunks is not None


def test_a_new_coordinator_sends_no_marker_before_the_decision_is_replicated(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pid, epoch = init(node)
    add(node, pid, epoch, 0)
    produce(node, pid, epoch)
    with monkeypatch.context() as without_markers:
        refuse = lambda *arguments: arguments[-1](ErrorCode.NOT_LEADER_OR_FOLLOWER)  # noqa: E731
        without_markers.setattr(MarkerWriter, "write", refuse)
        assert end(node, pid, epoch, True) == 0
        transactions = node.broker.transactions.get().coordinator
        index = node.broker.transaction_topic.partition_for(TX)
        state_log = node.broker.replicas.led["__transaction_state", index]
        transactions.unload(index)
    state_log.high_watermark = state_log.log.log_end_offset - 1
    state_log.leader_epoch += 1
    transactions.load(index)
    node.advance(60_000)
    assert transactions.machine_for(TX) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert partition(node).last_stable_offset == 0
    state_log.high_watermark = state_log.log.log_end_offset
    node.broker.turn.note_progress(state_log)
    node.advance(0)
    assert state(node) == "CompleteCommit"
    assert partition(node).last_stable_offset == partition(node).log.log_end_offset == 2
    machine = transactions.machine_for(TX)
    assert isinstance(machine, TransactionMachine) and machine.coordinator_epoch == state_log.leader_epoch
    state_log.leader_epoch += 1
    transactions.load(index)
    assert transactions.machine_for(TX) is machine and machine.coordinator_epoch == state_log.leader_epoch

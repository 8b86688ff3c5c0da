"""What a broker finds when it starts again."""

from tests.support.simulated_store import SimulatedStore
from tests.unit.broker.node import NodeUnderTest, batch, produce_frame
from tidelog.coordination.store import ABSENT, Write


def test_a_log_of_a_deleted_topic_is_not_given_to_a_new_one() -> None:
    """The metadata forgot the topic, a crash kept its folder: its records must not come back."""
    node = NodeUnderTest()
    node.create_topic("t")
    node.handle(produce_frame(3, batch(b"old")))
    node.broker.close()
    fresh_store = SimulatedStore()
    for entry in node.store.reopen().load():
        if not entry.key.startswith(("topics", "partitions")):
            fresh_store.commit([Write(entry.key, entry.value, ABSENT)])
    again = NodeUnderTest(node.disk, fresh_store)
    assert any(name.endswith("-stray") for name in node.disk.list("/data"))
    again.create_topic("t")
    assert again.broker.replicas.led["t", 0].log.log_end_offset == 0


def test_records_settings_and_ids_survive_a_restart() -> None:
    node = NodeUnderTest()
    node.create_topic("t", 2, retention_ms="12345")
    topic_id = node.broker.image.topics["t"].topic_id
    node.handle(produce_frame(3, batch(b"a", b"b"), partition=1))
    node.broker.close()
    again = NodeUnderTest(node.disk, node.store.reopen())
    partition = again.broker.replicas.led["t", 1]
    assert partition.log.log_end_offset == 2 and partition.high_watermark == 2
    assert again.broker.image.topics["t"].topic_id == topic_id
    assert partition.config.retention_ms == 12345
    assert not any(name.endswith("-stray") for name in node.disk.list("/data"))

"""A range is read to its end although the leader is killed in the middle of it."""

import pytest
from confluent_kafka import Producer

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.partition_reader import PartitionReader
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.testing.cluster import RunningCluster

SECONDS_MAX = 60
RECORDS = 2_000


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_leader_dies_while_its_partition_is_read() -> None:
    with RunningCluster(3) as brokers:
        brokers.create_topic("orders", partitions=1)
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "batch.num.messages": 50})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number)
            producer.poll(0)
        assert producer.flush(SECONDS_MAX) == 0
        where = TopicPartition("orders", 0)
        # Small fetches, so that many are still to come when the leader dies.
        options = {"bootstrap.servers": brokers.bootstrap, "max.partition.fetch.bytes": "4000"}
        with Cluster(ClientSettings.from_options(options)) as cluster:
            assert cluster.list_offsets({where: LATEST})[where].offset == RECORDS
            old_leader = cluster.leader_of("orders", 0)
            offsets: list[int] = []
            for number, one in enumerate(PartitionReader(cluster, where).slices(0, RECORDS, 30_000)):
                for _, header in iterate_headers(one.records):
                    offsets += range(header.base_offset, header.next_offset)
                if number == 1:
                    assert one.next_offset < RECORDS
                    brokers.kill(old_leader)
            assert offsets == list(range(RECORDS))
            assert cluster.leader_of("orders", 0) != old_leader

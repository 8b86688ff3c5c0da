"""Topics that a pipeline makes before it writes them, on a broker, with options in Java's words."""

from collections.abc import Iterator

import pytest

from tidelog.client.faults import ClientFault
from tidelog.pipelines.begun_with import cluster_id
from tidelog.pipelines.target_topics import CannotMakeTopic, make_missing, partition_counts
from tidelog.testing.broker import RunningBroker


@pytest.fixture(scope="module")
def kafka() -> Iterator[dict[str, str]]:
    """Options that the documentation names and that only a Java client, or ours, understands."""
    with RunningBroker() as broker:
        broker.create_topic("orders", partitions=3)
        broker.create_topic("payments", partitions=2)
        yield {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.default.api.timeout.ms": "20000",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.sasl.jaas.config": 'PlainLoginModule required username="u" password="p";',
        }


def test_missing_topics_are_made_like_their_sources(kafka: dict[str, str]) -> None:
    names = {"orders": "eu.orders", "payments": "eu.payments"}
    make_missing(kafka, kafka, {"orders": "eu.orders"})
    make_missing(kafka, kafka, names)
    make_missing(kafka, kafka, names)
    assert partition_counts(kafka, list(names.values())) == {"eu.orders": 3, "eu.payments": 2}
    make_missing(kafka, kafka, {"": "archived"}, counts={"": 5})
    assert partition_counts(kafka, ["archived"]) == {"archived": 5}


def test_what_the_cluster_refuses_is_told(kafka: dict[str, str]) -> None:
    with pytest.raises(CannotMakeTopic, match="creating empty: INVALID_PARTITIONS"):
        make_missing(kafka, kafka, {"": "empty"}, counts={"": 0})
    with pytest.raises(ClientFault, match="no/name"):
        make_missing(kafka, kafka, {"orders": "no/name"})
    with pytest.raises(ClientFault, match="nowhere"):
        make_missing(kafka, kafka, {"nowhere": "eu.nowhere"})


def test_a_cluster_says_who_it_is(kafka: dict[str, str]) -> None:
    assert cluster_id(kafka) == cluster_id({"bootstrap.servers": kafka["kafka.bootstrap.servers"]})
    assert cluster_id(kafka)

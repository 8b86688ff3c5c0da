"""Topics of an in-memory cluster whose replicas stand where a test wants them."""

from typing import Any

from tests.support.in_memory_cluster import InMemoryCluster
from tidelog.controller.commands import CreateTopics, TopicSpec


def place_topic(cluster: InMemoryCluster, name: str, *replicas: int) -> None:
    """A topic of one partition with these replicas, the first of which leads."""
    results: list[Any] = []
    cluster.run_until(lambda: cluster.controller is not None)
    assert cluster.controller is not None
    spec = TopicSpec(name, assignments=((0, replicas),))
    cluster.controller.broker.metadata.submit(CreateTopics((spec,)), results.extend)
    cluster.run_until(lambda: results)
    assert type(results[0]).__name__ == "TopicCreated", results
    cluster.run_until(lambda: all(name in node.broker.image.topics for node in cluster.living))

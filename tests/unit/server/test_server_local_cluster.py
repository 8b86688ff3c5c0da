"""The settings of a cluster that one command starts."""

import pytest

from tidelog.controller.internal_topics import internal_topic
from tidelog.model.identifiers import INTERNAL_TOPICS
from tidelog.model.settings import BrokerSettings
from tidelog.server.local_cluster import replication_settings


@pytest.mark.parametrize("broker_count", [1, 2, 3, 5])
def test_every_internal_topic_can_be_made(broker_count: int) -> None:
    shared_store = {"tidelog.coordination.path": "/data/cluster.sqlite"}
    settings = BrokerSettings.resolve({**replication_settings(broker_count), **shared_store})
    for name in INTERNAL_TOPICS:
        topic = internal_topic(name, settings, broker_count)
        assert topic.replication_factor == min(broker_count, 3), name
        assert int(topic.configs.get("min.insync.replicas") or 1) <= min(broker_count, 2), name

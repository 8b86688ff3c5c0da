"""How the broker's own topics are made: sized by settings, replicated as far as brokers reach.

Topics of groups and transactions are compacted; that of share groups loses its beginning as soon as later
snapshots say the same, and nothing by age.
"""

from tidelog.controller.commands import TopicSpec
from tidelog.model.identifiers import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from tidelog.model.settings import BrokerSettings


def internal_topic(name: str, settings: BrokerSettings, broker_count: int) -> TopicSpec:
    """The topic to create under an internal name.

    Deliberate difference: a broker whose store nobody can share lowers the replication factor to the brokers
    there are, so that one broker works with the default settings. Where others may join, too few brokers is
    an error that clients retry, as in Kafka: who comes first must not fix the factor at one.
    """
    assert broker_count > 0
    shared = bool(settings.get("zookeeper.connect") or settings.get("tidelog.coordination.path"))

    def replication_factor(setting: str) -> int:
        wanted = settings.get_int(setting)
        return wanted if shared else min(wanted, broker_count)

    if name == GROUP_METADATA_TOPIC:
        replicas = replication_factor("offsets.topic.replication.factor")
        return TopicSpec(
            name,
            settings.get_int("offsets.topic.num.partitions"),
            replicas,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.get_int("offsets.topic.segment.bytes")),
            },
        )
    if name == SHARE_GROUP_STATE_TOPIC:
        replicas = replication_factor("share.coordinator.state.topic.replication.factor")
        return TopicSpec(
            name,
            settings.get_int("share.coordinator.state.topic.num.partitions"),
            replicas,
            configs={
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(
                    min(settings.get_int("share.coordinator.state.topic.min.isr"), replicas)
                ),
                "retention.ms": "-1",
                "segment.bytes": str(settings.get_int("share.coordinator.state.topic.segment.bytes")),
            },
        )
    assert name == TRANSACTION_STATE_TOPIC
    replicas = replication_factor("transaction.state.log.replication.factor")
    return TopicSpec(
        name,
        settings.get_int("transaction.state.log.num.partitions"),
        replicas,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(settings.get_int("transaction.state.log.min.isr"), replicas)),
            "segment.bytes": str(settings.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        },
    )

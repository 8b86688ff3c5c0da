"""How the broker's own topics are made: compacted, sized by settings, replicated as far as brokers reach."""

from tidelog.controller.commands import TopicSpec
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.model.settings import BrokerSettings


def internal_topic(name: str, settings: BrokerSettings, broker_count: int) -> TopicSpec:
    """The topic to create under an internal name.

    Deliberate difference: where Kafka refuses when there are fewer brokers than the replication factor, the
    factor is lowered to the brokers there are, so that one broker works with the default settings.
    """
    assert broker_count > 0
    if name == GROUP_METADATA_TOPIC:
        replicas = min(settings.get_int("offsets.topic.replication.factor"), broker_count)
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
    assert name == TRANSACTION_STATE_TOPIC
    replicas = min(settings.get_int("transaction.state.log.replication.factor"), broker_count)
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

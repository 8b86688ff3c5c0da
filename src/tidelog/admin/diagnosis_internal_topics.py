"""What `tidelog doctor` says of the topics in which brokers keep groups, transactions and share groups."""

from collections.abc import Iterator

from tidelog.admin.diagnosis import (
    REPLICAS_WANTED,
    SETTING_OF_TIDELOG,
    Examination,
    Finding,
    counted,
    ok,
    some,
    warning,
)
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC

#: of each internal topic the setting of its replicas, and who cannot do without it
_FACTORS = {
    GROUP_METADATA_TOPIC: ("offsets.topic.replication.factor", "groups"),
    TRANSACTION_STATE_TOPIC: ("transaction.state.log.replication.factor", "transactions"),
    SHARE_GROUP_STATE_TOPIC: ("share.coordinator.state.topic.replication.factor", "share groups"),
}
#: with one of them a broker of ours may be one of several
STORE_SETTINGS = ("zookeeper.connect", "tidelog.coordination.path")


def internal_topics(seen: Examination) -> list[Finding]:
    """What groups committed and what transactions decided survives the loss of a broker too."""
    inner = [topic for topic in seen.topics if topic.internal and topic.partitions]
    wanted = min(REPLICAS_WANTED, len(seen.brokers))
    if not inner:
        return []
    few = [topic.name for topic in inner if topic.replication_factor < wanted]
    never = list(_never_made(seen))
    if not few:
        return never or [
            ok("internal-topics", f"{some([topic.name for topic in inner])} with {wanted} replicas or more")
        ]
    return [
        *never,
        warning(
            "internal-topics",
            f"internal topics with fewer than {wanted} replicas; groups and transactions stop with the broker"
            f" that has them: {some(few)}",
            f"tidelog cluster reassign --topic {few[0]} --replication-factor {wanted} --execute",
            *few,
        ),
    ]


def _never_made(seen: Examination) -> Iterator[Finding]:
    """Internal topics that are not there and ask for more replicas than there are brokers."""
    alive = [broker for broker in seen.alive if broker.configs]
    if not alive:
        return
    configs, there = alive[0].configs, {topic.name for topic in seen.topics}
    # A broker of ours that shares its store with nobody makes do with itself.
    if SETTING_OF_TIDELOG in configs and not any(configs.get(name) for name in STORE_SETTINGS):
        return
    for name, (setting, who) in _FACTORS.items():
        wanted = int(configs.get(setting) or 0)
        if name not in there and wanted > len(seen.alive):
            yield warning(
                "internal-topics",
                f"{name} is to have {counted(wanted, 'replica')}, there is only"
                f" {counted(len(seen.alive), 'broker')}, and {who} wait for it",
                f"start more brokers, or restart them with {setting}={len(seen.alive)}",
                name,
            )

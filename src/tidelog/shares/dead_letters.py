"""Dead letters of share groups (KIP-1191): which topic, which partition, which headers.

A record that was rejected, delivered as often as allowed, or whose time to live is over, is copied to the
topic that the group names: key, value and headers if `errors.deadletterqueue.copy.record.enable` is set for
the group, and what happened to it as headers of its own. Kafka's copies have no headers of the original; ours
do. The copy is written before the record counts as archived, so it may be there twice after a crash, and is
never missing."""

from collections.abc import Sequence

from tidelog.model.identifiers import topic_name_fault

PREFIX = "__dlq.errors."
TOPIC = f"{PREFIX}topic"
PARTITION = f"{PREFIX}partition"
OFFSET = f"{PREFIX}offset"
GROUP = f"{PREFIX}group"
DELIVERY_COUNT = f"{PREFIX}delivery.count"
MESSAGE = f"{PREFIX}message"

REJECTED = "The record was rejected by a member of the group."
COUNT_EXCEEDED = "The record was delivered as often as the group allows."
EXPIRED = "The time to live of the record was over."

Header = tuple[str, bytes | None]


def reason_after_restart(delivery_count: int, delivery_count_limit: int) -> str:
    """Why a record is archived is not stored; this is what can be told from its count."""
    return COUNT_EXCEEDED if delivery_count >= delivery_count_limit else REJECTED


def dead_letter_partition(source_partition: int, partition_count: int) -> int:
    return source_partition % partition_count


def dead_letter_headers(
    group_id: str,
    topic: str,
    partition: int,
    offset: int,
    delivery_count: int,
    reason: str,
    original: Sequence[Header] = (),
) -> tuple[Header, ...]:
    """The headers of a dead letter. Those of an earlier dead letter, which a record keeps that was sent back,
    give way to the new ones.
    """
    said = {
        TOPIC: topic,
        PARTITION: str(partition),
        OFFSET: str(offset),
        GROUP: group_id,
        DELIVERY_COUNT: str(delivery_count),
        MESSAGE: reason,
    }
    kept = (header for header in original if header[0] not in said)
    return (*kept, *((name, text.encode()) for name, text in said.items()))


def topic_fault(name: str, prefix: str, source_topic: str) -> str | None:
    """Why a topic cannot take the dead letters of another; None if it can by its name."""
    if topic_name_fault(name) is not None:
        return f"{name} is not the name of a topic"
    if not name.startswith(prefix):
        return f"the name does not begin with {prefix}"
    if name == source_topic:
        return "dead letters would come back to where they came from"
    return None

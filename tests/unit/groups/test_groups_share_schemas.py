"""The records of share groups: the bytes are those that Apache Kafka 4.3.1 writes."""

from uuid import UUID

import pytest

from tidelog.groups.share_schemas import (
    ShareAssignment,
    ShareGroupMetadata,
    ShareKey,
    ShareMemberMetadata,
    ShareRecordType,
    ShareValue,
    StatePartitions,
    TopicState,
    read_share_key,
    read_share_value,
    share_key,
    share_value,
)
from tidelog.records.stored_fields import UnreadableRecord

TOPIC = UUID("01234567-89ab-cdef-1122-334455667788")
BOTH = frozenset({(TOPIC, 0), (TOPIC, 2)})
STATES = StatePartitions(
    {TOPIC: TopicState("t", frozenset({2}))}, {TOPIC: TopicState("t", frozenset({0, 1}))}, {TOPIC: "u"}
)
ID = "0123456789abcdef1122334455667788"
VALUES: list[tuple[ShareRecordType, ShareValue, str]] = [
    (
        ShareRecordType.MEMBER_METADATA,
        ShareMemberMetadata(None, "cl", "/h", ("a", "b")),
        "00000003636c032f68030261026200",
    ),
    (ShareRecordType.GROUP_METADATA, ShareGroupMetadata(9, 77), "000000000009000000000000004d00"),
    (ShareRecordType.TARGET_ASSIGNMENT_METADATA, 9, "00000000000900"),
    (ShareRecordType.TARGET_ASSIGNMENT_MEMBER, BOTH, f"000002{ID}0300000000000000020000"),
    (
        ShareRecordType.CURRENT_MEMBER_ASSIGNMENT,
        ShareAssignment(9, 8, BOTH),
        f"000000000009000000080002{ID}0300000000000000020000",
    ),
    (
        ShareRecordType.STATE_PARTITION_METADATA,
        STATES,
        f"000002{ID}027402000000020002{ID}02740300000000000000010002{ID}02750000",
    ),
]


@pytest.mark.parametrize(("record_type", "value", "encoded"), VALUES)
def test_values(record_type: ShareRecordType, value: ShareValue, encoded: str) -> None:
    assert share_value(value).hex() == encoded
    assert read_share_value(record_type, bytes.fromhex(encoded)) == value


@pytest.mark.parametrize("record_type", ShareRecordType)
def test_keys(record_type: ShareRecordType) -> None:
    has_member = record_type in (10, 13, 14)
    encoded = f"{record_type:04x}00066f7264657273" + ("00026d31" if has_member else "")
    member_id = "m1" if has_member else None
    assert share_key(record_type, "orders", member_id).hex() == encoded
    assert read_share_key(bytes.fromhex(encoded)) == ShareKey(record_type, "orders", member_id or "")


def test_a_time_beside_the_assignment_epoch_is_read_over() -> None:
    encoded = bytes.fromhex("00000000000901000800000000000004d2")
    assert read_share_value(ShareRecordType.TARGET_ASSIGNMENT_METADATA, encoded) == 9


@pytest.mark.parametrize(("record_type", "value", "encoded"), VALUES)
def test_what_cannot_be_read(record_type: ShareRecordType, value: ShareValue, encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for size in range(len(whole) - 1):
        with pytest.raises(UnreadableRecord):
            read_share_value(record_type, whole[:size])
    with pytest.raises(UnreadableRecord):
        read_share_value(record_type, b"\x00\x01" + whole[2:])

"""The records of consumer groups: known bytes, and there and back again."""

from uuid import UUID

import pytest

from tidelog.groups.consumer_protocol import Subscription, assignment, read_assignment, read_subscription
from tidelog.groups.consumer_schemas import (
    ClassicMetadata,
    ConsumerKey,
    ConsumerRecordType,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    TopicMetadata,
    consumer_key,
    current_assignment_value,
    epoch_value,
    member_metadata_value,
    partition_metadata_value,
    read_consumer_key,
    read_consumer_value,
    regular_expression_value,
    target_assignment_value,
)
from tidelog.records.stored_fields import UnreadableRecord

ID = UUID(int=7)
RAW = ID.bytes
TYPE = ConsumerRecordType
MEMBER = MemberMetadata("i", None, "c", "/h", ("t", "u"), "a.*", 300, "range", None)
PARTITIONS = frozenset({(ID, 0), (ID, 3)})


def test_keys_are_kafkas() -> None:
    assert consumer_key(TYPE.GROUP_METADATA, "g") == b"\x00\x03\x00\x01g"
    assert consumer_key(TYPE.CURRENT_MEMBER_ASSIGNMENT, "g", "mm") == b"\x00\x08\x00\x01g\x00\x02mm"
    assert consumer_key(TYPE.REGULAR_EXPRESSION, "g", "a.*") == b"\x00\x10\x00\x01g\x00\x03a.*"
    for record_type in TYPE:
        named = record_type.name.startswith(("MEMBER", "TARGET_ASSIGNMENT_MEMBER", "CURRENT", "REGULAR"))
        key = consumer_key(record_type, "g", "s" if named else None)
        assert read_consumer_key(key) == ConsumerKey(record_type, "g", "s" if named else "")


def test_values_are_kafkas() -> None:
    assert epoch_value(5) == b"\x00\x00\x00\x00\x00\x05\x00"
    assert target_assignment_value(PARTITIONS) == (
        b"\x00\x00\x02" + RAW + b"\x03\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00"
    )
    current = CurrentAssignment(4, 3, MemberState.UNREVOKED_PARTITIONS, PARTITIONS, frozenset({(ID, 9)}))
    assert current_assignment_value(current) == (
        b"\x00\x00\x00\x00\x00\x04\x00\x00\x00\x03\x01"
        b"\x02" + RAW + b"\x03\x00\x00\x00\x00\x00\x00\x00\x03\x00"
        b"\x02" + RAW + b"\x02\x00\x00\x00\x09\x00\x00"
    )
    assert member_metadata_value(MEMBER) == (
        b"\x00\x00\x02i\x00\x02c\x03/h\x03\x02t\x02u\x04a.*\x00\x00\x01\x2c\x06range\x00"
    )
    assert partition_metadata_value({"t": TopicMetadata(ID, 6)}) == (
        b"\x00\x00\x02" + RAW + b"\x02t\x00\x00\x00\x06\x01\x00\x00"
    )


def test_values_come_back() -> None:
    classic = MEMBER._replace(classic=ClassicMetadata(9, (("range", b"\x00\x01"), ("sticky", b""))))
    for member in (MEMBER, classic):
        assert read_consumer_value(TYPE.MEMBER_METADATA, member_metadata_value(member)) == member
    topics = {"t": TopicMetadata(ID, 6), "u": TopicMetadata(UUID(int=8), 1)}
    assert read_consumer_value(TYPE.PARTITION_METADATA, partition_metadata_value(topics)) == topics
    current = CurrentAssignment(4, 3, MemberState.UNRELEASED_PARTITIONS, PARTITIONS)
    assert read_consumer_value(TYPE.CURRENT_MEMBER_ASSIGNMENT, current_assignment_value(current)) == current
    assert (
        read_consumer_value(TYPE.TARGET_ASSIGNMENT_MEMBER, target_assignment_value(PARTITIONS)) == PARTITIONS
    )
    regex = ResolvedRegex(("t",), 3, 4)
    assert read_consumer_value(TYPE.REGULAR_EXPRESSION, regular_expression_value(regex)) == regex
    assert read_consumer_value(TYPE.GROUP_METADATA, epoch_value(5)) == 5


def test_racks_of_older_kafkas_are_read_over() -> None:
    value = b"\x00\x00\x02" + RAW + b"\x02t\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x02r\x00\x00\x00"
    assert read_consumer_value(TYPE.PARTITION_METADATA, value) == {"t": TopicMetadata(ID, 1)}


def test_unknown_states_and_versions() -> None:
    value = bytearray(current_assignment_value(CurrentAssignment(1, 1)))
    value[10] = 77
    read = read_consumer_value(TYPE.CURRENT_MEMBER_ASSIGNMENT, bytes(value))
    assert isinstance(read, CurrentAssignment) and read.state is MemberState.UNKNOWN
    with pytest.raises(UnreadableRecord):
        read_consumer_value(TYPE.GROUP_METADATA, b"\x00\x01\x00")
    with pytest.raises(UnreadableRecord):
        read_consumer_value(TYPE.GROUP_METADATA, b"\x00\x00\x00")


def test_the_embedded_consumer_protocol() -> None:
    version_3 = (
        b"\x00\x03\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
        b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x07\x00\x01r"
    )
    assert read_subscription(version_3) == Subscription(3, ("t",), (("t", (2,)),), "r")
    assert read_subscription(b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff") == Subscription(0, ())
    encoded = assignment(1, [("t", [2, 3])])
    assert encoded == (
        b"\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\xff\xff\xff\xff"
    )
    assert read_assignment(encoded) == (("t", (2, 3)),)
    assert read_assignment(b"") == ()
    with pytest.raises(UnreadableRecord):
        read_subscription(b"\x00\x00\x00")

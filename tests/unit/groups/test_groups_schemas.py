"""The records of `__consumer_offsets`: Kafka's bytes, and every version read back."""

import struct

import pytest

from tidelog.groups.schemas import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
    subscribed_topics,
)
from tidelog.records.stored_fields import UnreadableRecord

MEMBER = MemberMetadata("m-1", "i", "c", "/h", 300_000, 45_000, b"sub", b"asg")
VALUE = GroupMetadataValue("consumer", 3, "range", "m-1", 1_700, (MEMBER,))


def test_keys_are_kafkas_bytes() -> None:
    assert offset_commit_key("g", "top", 7) == b"\x00\x01\x00\x01g\x00\x03top\x00\x00\x00\x07"
    assert group_metadata_key("g") == b"\x00\x02\x00\x01g"


def test_keys_are_read_back_and_other_kinds_are_not_ours() -> None:
    assert read_key(offset_commit_key("gé", "t", 7)) == OffsetCommitKey("gé", "t", 7)
    assert read_key(b"\x00\x00" + offset_commit_key("g", "t", 1)[2:]) == OffsetCommitKey("g", "t", 1)
    assert read_key(group_metadata_key("g")) == GroupMetadataKey("g")
    assert read_key(b"\x00\x03\x00\x01g") is None


def test_offset_value_is_version_3() -> None:
    value = OffsetCommitValue(42, 5, "meta", 99)
    assert offset_commit_value(value) == struct.pack(">hqih4sq", 3, 42, 5, 4, b"meta", 99)
    assert read_offset_commit_value(offset_commit_value(value)) == value


def test_offset_value_with_an_expiry_of_its_own_is_version_1() -> None:
    value = OffsetCommitValue(42, -1, "", 99, expire_timestamp_ms=199)
    assert offset_commit_value(value) == struct.pack(">hqhqq", 1, 42, 0, 99, 199)
    assert read_offset_commit_value(offset_commit_value(value)) == value


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (struct.pack(">hqhq", 0, 1, 0, 9), OffsetCommitValue(1, -1, "", 9)),
        (struct.pack(">hqhq", 2, 1, 0, 9), OffsetCommitValue(1, -1, "", 9)),
        (struct.pack(">hqib2sqb", 4, 1, 7, 3, b"ab", 9, 0), OffsetCommitValue(1, 7, "ab", 9)),
    ],
)
def test_older_and_newer_offset_values_are_read(stored: bytes, expected: OffsetCommitValue) -> None:
    assert read_offset_commit_value(stored) == expected


def test_group_value_survives_and_old_versions_fill_in() -> None:
    assert read_group_metadata_value(group_metadata_value(VALUE)) == VALUE
    version_0 = (
        b"\x00\x00\x00\x01c\x00\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x01"
        b"\x00\x01m\x00\x01c\x00\x01h\x00\x00\x03\xe8\x00\x00\x00\x00\x00\x00\x00\x00"
    )
    read = read_group_metadata_value(version_0)
    assert read == GroupMetadataValue(
        "c", 2, None, None, -1, (MemberMetadata("m", None, "c", "h", 1000, 1000, b"", b""),)
    )


def test_a_flexible_group_value_is_read_past_its_tagged_fields() -> None:
    member = b"\x02m\x00\x02c\x02h" + struct.pack(">ii", 5, 6) + b"\x02s\x02a" + b"\x01\x09\x01z"
    stored = (
        b"\x00\x04\x02c"
        + struct.pack(">i", 2)
        + b"\x00\x00"
        + struct.pack(">q", 8)
        + b"\x02"
        + member
        + b"\x00"
    )
    read = read_group_metadata_value(stored)
    assert read.members == (MemberMetadata("m", None, "c", "h", 5, 6, b"s", b"a"),)


@pytest.mark.parametrize("size", range(len(group_metadata_value(VALUE))))
def test_a_cut_value_is_unreadable_not_wrong(size: int) -> None:
    with pytest.raises(UnreadableRecord):
        read_group_metadata_value(group_metadata_value(VALUE)[:size])


def test_subscriptions() -> None:
    assert subscribed_topics(b"\x00\x01\x00\x00\x00\x02\x00\x01a\x00\x01b....") == frozenset({"a", "b"})
    assert subscribed_topics(b"nonsense") is None
    assert subscribed_topics(b"") is None

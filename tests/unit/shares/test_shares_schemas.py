"""Records of `__share_group_state`: the bytes are those that Apache Kafka 4.3.1 writes."""

from uuid import UUID

import pytest

from tidelog.records.stored_fields import UnreadableRecord
from tidelog.shares.schemas import (
    SNAPSHOT_KEY,
    UPDATE_KEY,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    read_key,
    read_snapshot,
    read_update,
    snapshot_key,
    snapshot_value,
    update_key,
    update_value,
)
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import RecordState

KEY = ShareKey("orders", UUID("01234567-89ab-cdef-1122-334455667788"), 3)
KEY_TAIL = "00066f72646572730123456789abcdef112233445566778800000003"
SNAPSHOT = ShareSnapshot(
    2,
    7,
    5,
    100,
    11,
    1_000,
    2_000,
    (StateBatch(100, 109, RecordState.AVAILABLE, 1), StateBatch(110, 120, RecordState.ACKNOWLEDGED, 3)),
)
SNAPSHOT_BYTES = (
    "0000000000020000000700000005000000000000006400000000000003e800000000000007d003"
    "0000000000000064000000000000006d0000010000"
    "0000000000006e00000000000000780200030001"
    "00040000000b"
)
FRESH = ShareSnapshot(0, 1, 0, -1, -1, 1, 1, ())
FRESH_BYTES = "0000000000000000000100000000ffffffffffffffff000000000000000100000000000000010100"
UPDATE = ShareUpdate(2, 5, 101, 0, (StateBatch(105, 105, RecordState.ARCHIVED, 5),))
UPDATE_BYTES = "00000000000200000005000000000000006502000000000000006900000000000000690400050001000400000000"


def test_keys() -> None:
    assert snapshot_key(KEY).hex() == "0000" + KEY_TAIL
    assert update_key(KEY).hex() == "0001" + KEY_TAIL
    assert read_key(snapshot_key(KEY)) == (SNAPSHOT_KEY, KEY)
    assert read_key(update_key(KEY)) == (UPDATE_KEY, KEY)
    assert read_key(b"\x00\x02" + snapshot_key(KEY)[2:]) is None, "a newer Kafka's record is not ours to read"


@pytest.mark.parametrize(("value", "encoded"), [(SNAPSHOT, SNAPSHOT_BYTES), (FRESH, FRESH_BYTES)])
def test_snapshots(value: ShareSnapshot, encoded: str) -> None:
    assert snapshot_value(value).hex() == encoded
    assert read_snapshot(bytes.fromhex(encoded)) == value


def test_updates() -> None:
    assert update_value(UPDATE).hex() == UPDATE_BYTES
    assert read_update(bytes.fromhex(UPDATE_BYTES)) == UPDATE


def test_what_cannot_be_read_is_said_so() -> None:
    encoded = bytes.fromhex(SNAPSHOT_BYTES)
    for size in range(len(encoded)):
        with pytest.raises(UnreadableRecord):
            read_snapshot(encoded[:size])
    with pytest.raises(UnreadableRecord):
        read_snapshot(b"\x00\x01" + encoded[2:])
    with pytest.raises(UnreadableRecord):
        read_update(update_value(UPDATE).replace(b"\x04\x00\x05", b"\x09\x00\x05"))

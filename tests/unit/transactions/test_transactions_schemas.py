"""The records of `__transaction_state`: Kafka's bytes, both versions, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.identifiers import TopicPartition
from tidelog.records.stored_fields import UnreadableRecord
from tidelog.transactions.schemas import (
    read_key,
    read_value,
    transaction_key,
    transaction_value,
)
from tidelog.transactions.states import TransactionState
from tidelog.transactions.transaction import Transaction

ONGOING = Transaction(
    transactional_id="tx",
    producer_id=4,
    producer_epoch=2,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 7)}),
    start_ms=16,
    update_ms=17,
)


def test_version_0_is_kafkas_bytes() -> None:
    assert transaction_value(ONGOING, 0) == (
        b"\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x04"
        b"\x00\x02"
        b"\x00\x00\xea\x60"
        b"\x01"
        b"\x00\x00\x00\x02"
        b"\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x00\x01b\x00\x00\x00\x01\x00\x00\x00\x07"
        b"\x00\x00\x00\x00\x00\x00\x00\x11"
        b"\x00\x00\x00\x00\x00\x00\x00\x10"
    )


def test_version_1_has_compact_forms_and_tags() -> None:
    tagged = Transaction(
        "tx", 4, 2, 60_000, TransactionState.EMPTY, frozenset(), -1, 17, 3, 5, client_version=2
    )
    assert transaction_value(tagged, 1) == (
        b"\x00\x01"
        b"\x00\x00\x00\x00\x00\x00\x00\x04"
        b"\x00\x02"
        b"\x00\x00\xea\x60"
        b"\x00"
        b"\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x11"
        b"\xff\xff\xff\xff\xff\xff\xff\xff"
        b"\x03"
        b"\x00\x08\x00\x00\x00\x00\x00\x00\x00\x03"
        b"\x01\x08\x00\x00\x00\x00\x00\x00\x00\x05"
        b"\x02\x02\x00\x02"
    )


def test_the_key() -> None:
    assert transaction_key("tx") == b"\x00\x00\x00\x02tx"
    assert read_key(b"\x00\x00\x00\x02tx") == "tx"
    assert read_key(b"\x00\x01\x00\x02tx") is None


@given(
    state=st.sampled_from(
        [state for state in TransactionState if state not in (TransactionState.DEAD, TransactionState.EMPTY)]
    ),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(max_size=20), st.integers(0, 2**31 - 1)), max_size=8
    ),
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    tagged=st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1), st.integers(0, 3)),
)
def test_what_is_written_is_read(
    state: TransactionState,
    partitions: frozenset[TopicPartition],
    producer_id: int,
    epoch: int,
    tagged: tuple[int, int, int],
) -> None:
    transaction = Transaction(
        "tx", producer_id, epoch, 1, state, partitions, 5, 6, tagged[0], tagged[1], client_version=tagged[2]
    )
    assert read_value("tx", transaction_value(transaction, 1)) == transaction
    plain = Transaction("tx", producer_id, epoch, 1, state, partitions, 5, 6)
    assert read_value("tx", transaction_value(plain, 0)) == plain


@pytest.mark.parametrize("version", [0, 1])
def test_cut_off_values_are_unreadable(version: int) -> None:
    whole = transaction_value(ONGOING, version)
    for size in range(len(whole)):
        with pytest.raises(UnreadableRecord):
            read_value("tx", whole[:size])


def test_unknown_versions_and_states_are_unreadable() -> None:
    whole = bytearray(transaction_value(ONGOING, 0))
    whole[16] = 9
    with pytest.raises(UnreadableRecord, match="no transaction state 9"):
        read_value("tx", bytes(whole))
    with pytest.raises(UnreadableRecord, match="version 2"):
        read_value("tx", b"\x00\x02" + bytes(whole[2:]))


def test_unknown_tags_are_passed_over() -> None:
    whole = transaction_value(ONGOING, 1)
    assert whole.endswith(b"\x00")
    assert read_value("tx", whole[:-1] + b"\x01\x63\x02ab") == ONGOING

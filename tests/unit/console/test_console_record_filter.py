"""The filter language: what it picks, and what it refuses."""

import pytest

from tidelog.console.record_filter import compile_filter
from tidelog.console.record_view import RecordView

RECORD = RecordView(
    "orders",
    3,
    41,
    1_700_000_000_000,
    "CreateTime",
    b"eu-17",
    b'{"amount": 120.5, "paid": true, "items": [{"sku": "A1"}], "note": null, "tags": ["x"], "id": "7"}',
    (("trace", b"abc"), ("retry.count", b"2")),
)


@pytest.mark.parametrize(
    "expression",
    [
        "value.amount > 100",
        "value.amount >= 120.5 and value.amount <= 120.5",
        'key contains "eu-"',
        "key startswith eu",
        'key == "eu-17"',
        "value.items.0.sku == A1",
        "value.paid == true",
        "value.paid",
        "value.note == null",
        "value.absent == null",
        "value.tags contains x",
        "value.id == 7",
        "headers.trace == abc",
        "headers.retry.count > 1",
        "offset == 41 and partition == 3",
        "timestamp < 1800000000000",
        "not (partition == 1 or partition == 2)",
        "amount",
        '"A1"',
        "value.amount < 1 or value.amount > 100",
        'value contains "paid"',
        'value.id != "8"',
    ],
)
def test_picks(expression: str) -> None:
    predicate = compile_filter(expression)
    assert predicate is not None
    assert predicate(RECORD)


@pytest.mark.parametrize(
    "expression",
    [
        "value.amount > 1000",
        "value.paid == 1",
        "value.items > 3",
        "value.absent > 3",
        "value.note",
        "key == eu",
        "headers.absent == x",
        "not value.paid",
        "nowhere",
        "key > 5",
    ],
)
def test_passes_over(expression: str) -> None:
    predicate = compile_filter(expression)
    assert predicate is not None
    assert not predicate(RECORD)


def test_an_empty_filter_is_none() -> None:
    assert compile_filter("  ") is None


@pytest.mark.parametrize(
    "expression",
    ["value.a >", "(key", "key ==", "== 3", "and", "key == )", "a b", '"open', "x" * 1001, "(" * 30],
)
def test_refuses_what_is_no_filter(expression: str) -> None:
    if expression == "and":
        # A word like any other where a comparison is expected.
        assert compile_filter(expression) is not None
        return
    with pytest.raises(ValueError):
        compile_filter(expression)


def test_a_record_without_key_and_value() -> None:
    empty = RecordView("t", 0, 0, None, "CreateTime", None, None, ())
    for expression, wanted in (
        ("key == null", True),
        ("value.a == 1", False),
        ("word", False),
        ("timestamp > 0", False),
    ):
        predicate = compile_filter(expression)
        assert predicate is not None
        assert predicate(empty) is wanted

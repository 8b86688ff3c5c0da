"""Rows of options: what they read, what they refuse and in which words."""

import pytest

from tidelog.client.faults import BadOption
from tidelog.client.option_rows import INT32_MAX, OptionRow, choice, flag, number, read_table, sort_out, text

TABLE: dict[str, OptionRow] = {
    "servers": text("bootstrap.servers", "metadata.broker.list"),
    "timeout_ms": number("request.timeout.ms", default=5, least=2),
    "checked": flag("check.crcs", default=True),
    "delivery": choice("delivery", choices=("exactly_once", "at_least_once"), default="exactly_once"),
}


def test_what_is_not_given_has_its_default() -> None:
    assert read_table(TABLE, {}) == {
        "servers": None,
        "timeout_ms": 5,
        "checked": True,
        "delivery": "exactly_once",
    }


def test_names_are_found_in_any_case_and_values_without_spaces() -> None:
    given = {"Metadata.Broker.List": " a:1 ", "REQUEST.TIMEOUT.MS": "7", "delivery": "At-Least-Once"}
    found = read_table(TABLE, given)
    assert (found["servers"], found["timeout_ms"], found["delivery"]) == ("a:1", 7, "at_least_once")
    assert sort_out(TABLE, {"b": "1", "A": "2", "delivery": "x"}) == ({"delivery": "x"}, ["A", "b"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"request.timeout.ms": "soon"}, "request.timeout.ms is a number, not 'soon'"),
        ({"request.timeout.ms": "1"}, "is at least 2, not 1"),
        ({"request.timeout.ms": str(INT32_MAX + 1)}, "is at most 2147483647"),
        ({"check.crcs": "yes"}, "check.crcs is true or false, not 'yes'"),
        ({"delivery": "perhaps"}, "delivery is exactly_once or at_least_once, not 'perhaps'"),
        ({"bootstrap.servers": "a", "metadata.broker.list": "b"}, "mean the same"),
        ({"bootstrap.servers": "a", "Bootstrap.Servers": "b"}, "mean the same"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as refused:
        read_table(TABLE, given)
    assert words in str(refused.value)


def test_the_same_twice_is_no_quarrel() -> None:
    both = {"bootstrap.servers": "a", "metadata.broker.list": "a"}
    assert read_table(TABLE, both)["servers"] == "a"

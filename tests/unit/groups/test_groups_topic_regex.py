"""Expressions over topic names: the same verdict as Python's `re` where both speak, and no backtracking."""

import contextlib
import re
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.groups.topic_regex import InvalidRegex, TopicRegex

EXPRESSIONS = [
    "a.*",
    "foo|bar",
    "(foo|b)+",
    "[a-c]{2,3}",
    "^a$",
    "a?b*c+",
    "(?i)AbC",
    "(?i:a)b",
    "[^x]+",
    r"\w+\.\d+",
    r"[\w.-]+?",
    "(?:ab){0,2}",
    "a{2}",
    "a{2,}",
    "",
    "(a+)+b",
    "[a-]+",
    "[]a]+",
    "a|",
    "(?P<name>a)b",
    r"\bfoo\b.*",
    r"\x61[^\d]*",
    "((a|b)?c){2}",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(st.text("abcfoABCx1.-_", max_size=6))
@settings(max_examples=60, deadline=None)
def test_it_matches_what_re_matches(expression: str, name: str) -> None:
    assert TopicRegex(expression).matches(name) == (re.fullmatch(expression, name) is not None)


def test_re2_has_a_few_forms_of_its_own() -> None:
    assert TopicRegex(r"\Qa.b\E.*").matches("a.bc") and not TopicRegex(r"\Qa.b\E").matches("axb")
    assert TopicRegex("[[:alpha:]]+").matches("abc") and not TopicRegex("[[:^alpha:]]+").matches("abc")
    assert TopicRegex(r"\x{61}\z").matches("a")
    assert TopicRegex("a{,2}").matches("a{,2}")  # not a repeat, as the first number is missing
    assert TopicRegex(r"(?<name>a)\z").matches("a")


@pytest.mark.parametrize(
    "expression",
    [
        "(", "a)", "[a", "*a", "a**", "(?=a)", "(?!a)", r"\1", "(?<=a)", "(?<!a)", "(?P=n)", "a{1001}",
        "a{3,1}", "(?>a)", r"\p", "a++", "(a{1000}){1000}", "[b-a]", "\\", "(?P<>a)", "[[:nothing:]]",
        r"\xzz", "(" * 500,
    ],
)  # fmt: skip
def test_what_re2_does_not_speak_is_invalid(expression: str) -> None:
    with pytest.raises(InvalidRegex):
        TopicRegex(expression)


def test_an_expression_that_makes_backtracking_explode_is_quick() -> None:
    before = time.process_time()
    assert not TopicRegex("(a*)*(a|a)*(a+)+b").matches("a" * 249)
    assert time.process_time() - before < 2


HOSTILE = [
    r"(?i)\pL" * 3_000, r"\pN" * 4_000, "(x{0,99}){0,9}|" * 1_300, "x{0,1000}|" * 2_000,
    "(" * 20_000 + ")" * 20_000,
    r"(?i)\pL" * 140, "(x{0,99}){0,9}|" * 68, r"\PL" * 340, "((a{0,100}){0,10}){0,1}",
]  # fmt: skip


@pytest.mark.parametrize("expression", HOSTILE, ids=lambda one: f"{one[:12]} {len(one)}")
def test_an_expression_costs_little_time_and_memory_before_it_is_refused(expression: str) -> None:
    """Each of these took the engine before RE2 seconds, and up to hundreds of megabytes."""
    before, resident_before = time.process_time(), resident_bytes()
    with contextlib.suppress(InvalidRegex):
        TopicRegex(expression)
    assert time.process_time() - before < 0.2
    assert resident_bytes() - resident_before < 16 << 20


def test_a_long_list_of_names_is_no_large_expression() -> None:
    names = [f"orders-of.shop-{number}" for number in range(1_000)]
    regex = TopicRegex("|".join(name.replace(".", r"\.") for name in names))
    assert all(map(regex.matches, names)) and not regex.matches("orders-ofxshop-1")
    with pytest.raises(InvalidRegex, match="more than 1024"):
        TopicRegex("|".join(names) + r"|\d")


def test_the_module_keeps_nothing_of_what_was_compiled() -> None:
    import re2

    TopicRegex("kept?")
    assert re2._Regexp._make.cache_info().currsize == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

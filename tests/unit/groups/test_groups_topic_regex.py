"""Expressions over topic names: the same verdict as Python's `re` where both speak, and no backtracking."""

import re
import time

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
    assert TopicRegex(r"\x{61}\A?").matches("a")
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

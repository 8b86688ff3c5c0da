"""Which queues a message goes to, by exchange type; topics against a plain definition of matching."""

import itertools
import random

import pytest

from tidelog.gateways.amqp.definitions import (
    TO_EXCHANGE,
    TO_QUEUE,
    Binding,
    Definitions,
    Exchange,
    Queue,
    binding_record,
    exchange_record,
    queue_record,
    topic_name,
)
from tidelog.gateways.amqp.routing import headers_match, route, topic_matches


def plain_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(plain_match(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and plain_match(pattern[1:], words[1:])


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("#", "", True),
        ("*", "", True),
        ("*", "a.b", False),
        ("a.*.c", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#.c", "a.c", True),
        ("#.c", "a.b.c", True),
        ("a.#.#.c", "a.b.c", True),
        ("a.b", "a.b.c", False),
        ("a#", "ab", False),
    ],
)
def test_topic_patterns(pattern: str, key: str, expected: bool) -> None:
    assert topic_matches(pattern, key) is expected


def test_topic_patterns_match_as_defined() -> None:
    choices = random.Random(7)
    for pattern in itertools.product(("a", "*", "#"), repeat=4):
        for _ in range(20):
            words = [choices.choice("ab") for _ in range(choices.randint(1, 6))]
            assert topic_matches(".".join(pattern), ".".join(words)) == plain_match([*pattern], words)


def test_a_hostile_pattern_costs_no_more_than_its_length() -> None:
    pattern = ".".join(["#", "a"] * 60)
    assert not topic_matches(pattern, ".".join(["a"] * 120 + ["b"]))


@pytest.mark.parametrize(
    ("wanted", "headers", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"x-match": "all"}, {}, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
    ],
)
def test_headers(wanted: dict[str, object], headers: dict[str, object], expected: bool) -> None:
    assert headers_match(wanted, headers) is expected


def world() -> Definitions:
    definitions = Definitions()
    for name in ("one", "two"):
        definitions.apply(*queue_record(Queue(name, name, f"amqp.{name}")), 0)
    definitions.apply(*exchange_record(Exchange("fan", "fanout")), 0)
    definitions.apply(
        *exchange_record(Exchange("words", "topic", arguments={"alternate-exchange": "fan"})), 0
    )
    definitions.apply(*binding_record(Binding("fan", TO_QUEUE, "two", "")), 0)
    definitions.apply(*binding_record(Binding("words", TO_QUEUE, "one", "a.*")), 0)
    definitions.apply(*binding_record(Binding("words", TO_QUEUE, "one", "a.#")), 0)
    definitions.apply(*binding_record(Binding("words", TO_EXCHANGE, "fan", "a.fan")), 0)
    definitions.apply(*binding_record(Binding("fan", TO_EXCHANGE, "words", "")), 0)
    return definitions


@pytest.mark.parametrize(
    ("exchange", "key", "expected"),
    [
        ("", "one", {"one"}),
        ("", "three", set()),
        ("words", "a.b", {"one"}),
        ("words", "a.fan", {"one", "two"}),
        ("words", "else", {"two"}),
        ("fan", "whatever", {"two"}),
    ],
)
def test_each_queue_once_through_exchanges_that_go_round(exchange: str, key: str, expected: set[str]) -> None:
    definitions = world()
    found = route(definitions, definitions.exchanges[exchange], key, {})
    assert sorted(queue.name for queue in found) == sorted(expected)


def test_what_is_deleted_takes_its_bindings_along() -> None:
    definitions = world()
    definitions.apply(b"queue/two", None, 0)
    definitions.apply(*queue_record(Queue("two", "two", "amqp.two")), 0)
    assert route(definitions, definitions.exchanges["fan"], "", {}) == []


@pytest.mark.parametrize("key", [b"", b"queue", b"what/ever", b"binding/x", b"\xff/\xff", b"queue/q"])
def test_definitions_that_cannot_be_read_are_passed_over(key: bytes) -> None:
    definitions = Definitions()
    definitions.apply(key, b'{"no": "such field"}', 0)
    assert definitions.queues == {}


def test_names_of_topics() -> None:
    assert topic_name("orders.new-1") == "orders.new-1"
    names = [
        "celery@host.celery.pidbox",
        "celery_host.celery.pidbox",
        "ä" * 100,
        ".",
        "..",
        "__secret",
        "a b",
    ]
    topics = [topic_name(name) for name in names]
    assert len(set(topics)) == len(names)
    assert all(len(name) <= 249 and not name.startswith("__amqp_definitions") for name in topics)
    assert topics[5] != "__secret"

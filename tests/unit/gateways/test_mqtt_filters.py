"""Topic filters: what they cover, by a plain reading of the specification and by the tree."""

import random

import pytest

from tidelog.gateways.mqtt import filters
from tidelog.gateways.mqtt.filters import FilterTree, Share
from tidelog.gateways.mqtt.messages import Message
from tidelog.gateways.mqtt.retained import Retained

LEVELS = ["a", "b", "", "$SYS"]


@pytest.mark.parametrize(
    ("text", "topic", "covered"),
    [
        ("sport/#", "sport", True),
        ("sport/#", "sport/tennis/player1", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("a/b", "a/B", False),
    ],
)
def test_examples_of_the_specification(text: str, topic: str, covered: bool) -> None:
    assert filters.matches(text, topic) is covered


def random_topic(source: random.Random) -> str:
    return "/".join(source.choice(LEVELS) for _ in range(source.randrange(1, 4))) or "a"


def random_filter(source: random.Random) -> str:
    levels = [source.choice([*LEVELS, "+"]) for _ in range(source.randrange(1, 4))]
    return "/".join([*levels, "#"] if source.random() < 0.3 else levels) or "+"


def test_the_tree_finds_what_each_filter_covers() -> None:
    source = random.Random(1)
    tree: FilterTree[int, str] = FilterTree()
    there: dict[tuple[str, int], str] = {}
    for _ in range(2_000):
        text, key = random_filter(source), source.randrange(4)
        if source.random() < 0.4:
            tree.remove(text, key)
            there.pop((text, key), None)
        else:
            tree.add(text, key, text)
            there[text, key] = text
        assert len(tree) == len(there)
        topic = random_topic(source)
        found = sorted(tree.match(topic))
        assert found == sorted((key, text) for text, key in there if filters.matches(text, topic))


def test_retained_messages_are_found_by_filters() -> None:
    source = random.Random(2)
    retained = Retained(1_000, 1 << 20)
    there: set[str] = set()
    for offset in range(1_000):
        topic = random_topic(source)
        gone = source.random() < 0.3
        retained.put(topic, None if gone else Message(topic, b"x"), offset)
        there = there - {topic} if gone else there | {topic}
        text = random_filter(source)
        found = sorted(message.topic for message in retained.match(text))
        assert found == sorted(each for each in there if filters.matches(text, each))
        assert retained.count == len(there)
    retained.put("a", Message("a", b"new"), 2_000)
    retained.put("a", Message("a", b"old"), 1_999)
    message = retained.get("a")
    assert message is not None and message.payload == b"new"


def test_filters_overlap_where_a_topic_shows_it() -> None:
    source = random.Random(3)
    for _ in range(3_000):
        one, other, topic = random_filter(source), random_filter(source), random_topic(source)
        if filters.covers(one, topic) and filters.matches(other, topic):
            assert filters.overlap(one, other), (one, other, topic)


@pytest.mark.parametrize("text", ["", "a/#/b", "a#", "a/b+", "+a", "#/"])
def test_bad_filters(text: str) -> None:
    assert filters.filter_fault(text) is not None


def test_shared_filters() -> None:
    assert filters.read_share("$share/g/a/#") == Share("g", "a/#")
    assert filters.read_share("a/b") is None
    for text in ("$share/g", "$share//a", "$share/g+/a"):
        with pytest.raises(ValueError):
            filters.read_share(text)

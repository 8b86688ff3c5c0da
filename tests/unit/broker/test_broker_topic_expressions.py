"""Expressions of clients: worked out elsewhere, one at a time, and kept while the topics are the same."""

from types import MappingProxyType
from uuid import UUID

import pytest

from tests.support.held_background import HeldBackground
from tidelog.broker.coordinators import topic_expressions
from tidelog.broker.coordinators.topic_expressions import TopicExpressions
from tidelog.groups.topic_regex import InvalidRegex, Resolved
from tidelog.model.image import TopicImage


def topics(*names: str) -> MappingProxyType[str, TopicImage]:
    return MappingProxyType({name: TopicImage(name, UUID(int=i + 1)) for i, name in enumerate(names)})


def test_nothing_is_compiled_on_the_loop() -> None:
    background = HeldBackground()
    expressions = TopicExpressions(background)
    of = topics("apple", "pear", "__consumer_offsets")
    assert expressions.resolve("a.*|_.*", of) is None
    assert expressions.resolve("a.*|_.*", of) is None  # begun once
    called: list[str] = []
    expressions.when_resolved("a.*|_.*", of, lambda: called.append("then"))
    assert len(background.held) == 1 and not called
    background.step()
    assert called == ["then"]
    assert expressions.resolve("a.*|_.*", of) == Resolved(("apple",))


def test_one_expression_at_a_time_takes_one_thread() -> None:
    background = HeldBackground()
    expressions = TopicExpressions(background)
    for number in range(20):
        expressions.resolve(f"a{number}", topics("a1"))
    assert len(background.held) == 1
    for _ in range(20):
        background.step()
    assert not background.held
    assert expressions.resolve("a1", topics("a1")) == Resolved(("a1",))


def test_while_topics_change_the_old_ones_count() -> None:
    background = HeldBackground()
    expressions = TopicExpressions(background)
    expressions.resolve("a.*", topics("a"))
    background.step()
    newer = topics("a", "ab")
    assert expressions.resolve("a.*", newer) == Resolved(("a",), is_current=False)
    background.step()
    assert expressions.resolve("a.*", newer) == Resolved(("a", "ab"))
    # The same names in another image need no more work.
    assert expressions.resolve("a.*", topics("a", "ab")) == Resolved(("a", "ab"))
    assert not background.held


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_expressions, "KNOWN_MAX", 3)
    monkeypatch.setattr(topic_expressions, "KNOWN_NAMES_MAX", 5)
    background = HeldBackground()
    expressions = TopicExpressions(background)
    of = topics("a", "b", "c")
    for number in range(9):
        expressions.resolve(f".|{number}", of)
        background.step()
    assert len(expressions._known) == 1 and expressions._known_names == 3


def test_an_expression_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_expressions, "SECONDS_MAX", 0.01)
    names = ["a" * 200] * 100_000
    assert isinstance(topic_expressions.match("((a{0,100}){0,10})", names), InvalidRegex)

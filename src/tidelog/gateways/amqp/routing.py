"""Where a message goes: the queues that an exchange's bindings lead to, each once."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tidelog.gateways.amqp.definitions import (
    DEFAULT_EXCHANGE,
    FANOUT,
    HEADERS,
    TO_QUEUE,
    TOPIC,
    Binding,
    Definitions,
    Exchange,
    Queue,
)

#: words of a pattern; more make matching slow for everybody
WORDS_MAX = 128
_PATTERNS_KEPT = 4096


def route(
    definitions: Definitions, exchange: Exchange, routing_key: str, headers: Mapping[str, Any]
) -> list[Queue]:
    """The queues for a message, in no order that matters."""
    if exchange.name == DEFAULT_EXCHANGE:
        queue = definitions.queues.get(routing_key)
        return [] if queue is None else [queue]
    found: dict[str, Queue] = {}
    seen = {exchange.name}
    waiting = [exchange]
    while waiting:
        current = waiting.pop()
        reached = False
        for binding in definitions.bindings.get(current.name, {}).values():
            if not matches(current.type, binding, routing_key, headers):
                continue
            reached = True
            if binding.kind == TO_QUEUE:
                queue = definitions.queues.get(binding.destination)
                if queue is not None:
                    found[queue.name] = queue
            elif binding.destination not in seen and binding.destination in definitions.exchanges:
                seen.add(binding.destination)
                waiting.append(definitions.exchanges[binding.destination])
        alternate = current.arguments.get("alternate-exchange")
        if not reached and isinstance(alternate, str) and alternate not in seen:
            seen.add(alternate)
            if alternate in definitions.exchanges:
                waiting.append(definitions.exchanges[alternate])
    return list(found.values())


def matches(exchange_type: str, binding: Binding, routing_key: str, headers: Mapping[str, Any]) -> bool:
    if exchange_type == FANOUT:
        return True
    if exchange_type == TOPIC:
        return topic_matches(binding.routing_key, routing_key)
    if exchange_type == HEADERS:
        return headers_match(binding.arguments, headers)
    return binding.routing_key == routing_key


def topic_matches(pattern: str, routing_key: str) -> bool:
    """`*` is one word, `#` any number of them; words are parted by dots."""
    if pattern == "#":
        return True
    if "*" not in pattern and "#" not in pattern:
        return pattern == routing_key
    return _words_match(_words(pattern), routing_key.split("."))


@lru_cache(_PATTERNS_KEPT)
def _words(pattern: str) -> tuple[str, ...]:
    # Two # in a row say what one says.
    return tuple(re.sub(r"(?:^|(?<=\.))#(?:\.#)+(?=\.|$)", "#", pattern).split("."))


def _words_match(pattern: tuple[str, ...], words: list[str]) -> bool:
    """Word by word, the positions in the pattern that may come next: never more than it has words."""
    states = _closed(pattern, {0})
    for word in words:
        following = set()
        for state in states:
            if state < len(pattern):
                expected = pattern[state]
                if expected == "#":
                    following.add(state)
                elif expected in ("*", word):
                    following.add(state + 1)
        states = _closed(pattern, following)
        if not states:
            return False
    return len(pattern) in states


def _closed(pattern: tuple[str, ...], states: set[int]) -> set[int]:
    """With what is reached without a word: a # may stand for none."""
    for state in sorted(states):
        while state < len(pattern) and pattern[state] == "#":
            state += 1
            states.add(state)
    return states


def headers_match(wanted: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """`x-match` is all (by default) or any; with -with-x behind it names that begin with x- count as well."""
    mode = wanted.get("x-match", "all")
    with_x = mode in ("all-with-x", "any-with-x")
    rows = [
        name in headers and (value is None or headers[name] == value)
        for name, value in wanted.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    return any(rows) if str(mode).startswith("any") else all(rows)

"""Regular expressions over topic names and transactional ids, as RE2 understands them.

Kafka uses RE2/J; here it is RE2 itself (google-re2). It does not backtrack: the time of a match is bounded by
the size of the compiled expression times the length of the name. The size is bounded by `MEMORY_BYTES_MAX`,
and an expression of more than `EXPRESSION_BYTES_MAX` bytes is compiled only if it is a plain list of names,
dots, stars and groups: classes of Unicode and counted repeats take RE2 up to 30 microseconds a byte.

An expression matches a name as a whole. Who matches many names does it away from the event loop: see
`Expressions`, and `broker/coordinators/topic_expressions.py` for the one that brokers have.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

from tidelog.model.image import TopicImage

EXPRESSION_BYTES_MAX = 1_024
#: what RE2 may use for the compiled expression and for the states that it meets while it matches
MEMORY_BYTES_MAX = 1 << 20
#: what costs RE2 next to nothing: letters of names, `.`, `*`, `+`, `|`, `^`, `$`, groups, `\.` and `\-`
_PLAIN = re.compile(r"(?:[A-Za-z0-9_.*+|^$()-]|\\[.-])*")


class InvalidRegex(ValueError):
    """The expression is not in the language, or too large; the message says why."""


@cache
def _re2() -> tuple[Any, Any]:
    """The library, which most brokers never need, and how it is used."""
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    return re2, options


class TopicRegex:
    """A compiled expression."""

    __slots__ = ("_fullmatch", "expression")

    def __init__(self, expression: str) -> None:
        size_bytes = len(expression.encode())
        if size_bytes > EXPRESSION_BYTES_MAX and _PLAIN.fullmatch(expression) is None:
            raise InvalidRegex(f"the expression has {size_bytes} bytes, more than {EXPRESSION_BYTES_MAX}")
        self.expression = expression
        re2, options = _re2()
        try:
            self._fullmatch = re2.compile(expression, options).fullmatch
        except re2.error as fault:
            [reason] = fault.args
            message = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise InvalidRegex(message) from fault
        finally:
            # The module keeps what it compiles, with all the memory that it may use.
            re2.purge()

    def __repr__(self) -> str:
        return f"<TopicRegex {self.expression}>"

    def matches(self, name: str) -> bool:
        """Does the expression match the whole name?"""
        return self._fullmatch(name) is not None


class Resolved(NamedTuple):
    """What an expression stood for when it was last held against the topics."""

    topics: tuple[str, ...]
    #: whether those were the topics of now
    is_current: bool = True


class Expressions(Protocol):
    """Knows what expressions stand for."""

    def resolve(self, expression: str, topics: Mapping[str, TopicImage]) -> Resolved | InvalidRegex | None:
        """The topics of an expression, why it is none, or None: it is being worked out, ask again later."""
        ...


class ImmediateExpressions:
    """Works everything out at once, for tests and simulations."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicImage] = {}
        self._known: dict[str, Resolved | InvalidRegex] = {}

    def resolve(self, expression: str, topics: Mapping[str, TopicImage]) -> Resolved | InvalidRegex | None:
        if topics is not self._topics:
            self._topics, self._known = topics, {}
        if expression not in self._known:
            try:
                regex = TopicRegex(expression)
                names = sorted(name for name in matchable(topics) if regex.matches(name))
                self._known[expression] = Resolved(tuple(names))
            except InvalidRegex as fault:
                self._known[expression] = fault
        return self._known[expression]


def matchable(topics: Mapping[str, TopicImage]) -> list[str]:
    """The topics that an expression may stand for: all but the internal ones."""
    return [name for name, topic in topics.items() if not topic.internal]

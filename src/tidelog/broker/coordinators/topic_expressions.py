"""What the regular expressions of clients stand for, worked out away from the event loop.

Compiling an expression and holding it against ten thousand names can take long, and somebody may choose one
for which it does. So it is done in a worker thread, one expression at a time, for no longer than
`SECONDS_MAX`; RE2 lets the loop run while it matches. What came out is kept while the topics are the same:
`TopicExpressions` is what the group machines ask. Nobody comes here before the authorizer let them.

The last `KNOWN_MAX` expressions are kept. One that was forgotten is worked out again when it is needed;
until then a group goes on with what was written down for it.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from tidelog.broker.runtime.background import Background
from tidelog.groups.topic_regex import InvalidRegex, Resolved, TopicRegex, matchable
from tidelog.model.image import TopicImage

#: expressions whose topics are kept
KNOWN_MAX = 1_000
#: names in all of them together; each costs the eight bytes of a reference
KNOWN_NAMES_MAX = 1_000_000
SECONDS_MAX = 2.0

Matched = tuple[str, ...] | InvalidRegex
Then = Callable[[Matched], None]


def match(expression: str, names: list[str]) -> Matched:
    """The names that an expression matches, in their order, or why there are none; runs in a thread."""
    try:
        regex = TopicRegex(expression)
        deadline = time.monotonic() + SECONDS_MAX
        found = []
        for name in names:
            if regex.matches(name):
                found.append(name)
            if time.monotonic() > deadline:
                raise InvalidRegex(f"it takes more than {SECONDS_MAX:.0f} s to match")
    except InvalidRegex as fault:
        return fault
    return tuple(found)


class TopicExpressions:
    """The expressions of a broker's clients, and the topics that they stand for."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._queue: deque[tuple[str, list[str], Then]] = deque()
        self._busy = False
        self._topics: Mapping[str, TopicImage] = {}
        self._names: list[str] = []
        #: grows when topics come and go; a change of partitions alone changes no names
        self._generation = 0
        #: what is known, and of which generation of names
        self._known: OrderedDict[str, tuple[Matched, int]] = OrderedDict()
        self._known_names = 0
        #: what is being worked out, of which generation
        self._begun: dict[str, int] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def __repr__(self) -> str:
        return f"<TopicExpressions known={len(self._known)} queued={len(self._queue)}>"

    def resolve(self, expression: str, topics: Mapping[str, TopicImage]) -> Resolved | InvalidRegex | None:
        """The topics of an expression as far as they are known; what is missing is begun."""
        self._look_at(topics)
        known = self._known.get(expression)
        if known is None or known[1] != self._generation:
            self._work_out(expression)
            known = self._known.get(expression)
        if known is None:
            return None
        self._known.move_to_end(expression)
        matched, generation = known
        if isinstance(matched, InvalidRegex):
            return matched
        return Resolved(matched, generation == self._generation)

    def when_resolved(
        self, expression: str, topics: Mapping[str, TopicImage], then: Callable[[], None]
    ) -> None:
        """Call back when something is known of an expression; at once if it is so already."""
        if self.resolve(expression, topics) is not None:
            then()
        else:
            self._waiting.setdefault(expression, []).append(then)

    def match(self, expression: str, names: list[str], then: Then) -> None:
        """Hold an expression against names; nothing of it is kept."""
        self._queue.append((expression, names, then))
        self._run_next()

    def _look_at(self, topics: Mapping[str, TopicImage]) -> None:
        if topics is self._topics:
            return
        self._topics = topics
        names = sorted(matchable(topics))
        if names != self._names:
            self._names = names
            self._generation += 1

    def _work_out(self, expression: str) -> None:
        generation = self._generation
        if self._begun.get(expression) == generation:
            return
        self._begun[expression] = generation
        self.match(expression, self._names, lambda matched: self._learn(expression, generation, matched))

    def _learn(self, expression: str, generation: int, matched: Matched) -> None:
        if self._begun.get(expression) == generation:
            del self._begun[expression]
        self._forget(expression)
        self._known[expression] = matched, generation
        self._known_names += 0 if isinstance(matched, InvalidRegex) else len(matched)
        while len(self._known) > KNOWN_MAX or (self._known_names > KNOWN_NAMES_MAX and len(self._known) > 1):
            self._forget(next(iter(self._known)))
        for then in self._waiting.pop(expression, ()):
            then()

    def _forget(self, expression: str) -> None:
        matched = self._known.pop(expression, ((), 0))[0]
        self._known_names -= 0 if isinstance(matched, InvalidRegex) else len(matched)

    def _run_next(self) -> None:
        if self._busy or not self._queue:
            return
        expression, names, then = self._queue[0]
        self._busy = True

        def finish(outcome: Matched | BaseException) -> None:
            self._busy = False
            self._queue.popleft()
            try:
                if not isinstance(outcome, tuple | InvalidRegex):
                    raise outcome
                then(outcome)
            finally:
                self._run_next()

        self._background.run(lambda: match(expression, names), finish)

r"""Regular expressions over topic names, in RE2's language and like RE2 without backtracking.

A client's expression must not be able to keep the coordinator busy, so matching time is bounded by the size
of the expression times the length of the name: the expression becomes a set of states that all advance with
each character (Thompson 1968). What RE2 leaves out (back references, looking ahead or behind, possessive
repeats) is `InvalidRegex` here too.

    alternatives  a|b       repeats  * + ? {n} {n,} {n,m}, each with ? after it      anchors  ^ $ \A \z \b \B
    groups  (…) (?:…) (?P<name>…) (?<name>…) (?i) (?i:…) with flags i m s U          . any character
    classes  [a-z] [^a] [[:alpha:]] \d \w \s \D \W \S     escapes  \. \n \t \x41 \x{41} \Q…\E

An expression matches a name as a whole.
"""

from collections.abc import Callable, Iterable

REPEAT_LIMIT = 1_000
"""RE2's limit on the numbers in {n,m}."""
STATE_LIMIT = 20_000
DEPTH_LIMIT = 100

CharTest = Callable[[str], bool]


class InvalidRegex(ValueError):
    """The expression is not in the language; the message says why."""


_POSIX: dict[str, CharTest] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "digit": lambda c: "0" <= c <= "9",
    "lower": lambda c: "a" <= c <= "z",
    "upper": lambda c: "A" <= c <= "Z",
    "punct": lambda c: c.isascii() and c.isprintable() and not c.isalnum() and c != " ",
    "space": lambda c: c in " \t\n\r\f\v",
    "word": lambda c: c.isascii() and (c.isalnum() or c == "_"),
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_PERL = {"d": "digit", "w": "word", "s": "space"}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


def _not(test: CharTest) -> CharTest:
    return lambda c: not test(c)


def _is(char: str, folded: bool) -> CharTest:
    if folded:
        lower = char.lower()
        return lambda c: c.lower() == lower
    return lambda c: c == char


class _State:
    """A node: it consumes a character `test` accepts, or goes on without one if `condition` holds."""

    __slots__ = ("condition", "next", "test")

    def __init__(
        self, test: CharTest | None = None, condition: Callable[[str, int], bool] | None = None
    ) -> None:
        self.test = test
        self.condition = condition
        self.next: list[_State] = []


_Fragment = tuple[_State, _State]
"""A part of the graph: where it begins and where it ends."""


def _at_start(text: str, at: int) -> bool:
    return at == 0


def _at_end(text: str, at: int) -> bool:
    return at == len(text)


def _at_word_boundary(text: str, at: int) -> bool:
    word = _POSIX["word"]
    before = at > 0 and word(text[at - 1])
    after = at < len(text) and word(text[at])
    return before != after


class _Parser:
    """Recursive descent over the expression, building states as it goes."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._states = 0
        self._depth = 0
        self._folded = False

    def parse(self) -> _Fragment:
        fragment = self._alternatives()
        if self._at < len(self._text):
            raise InvalidRegex("unexpected )")
        return fragment

    # ------------------------------------------------------------ building

    def _state(
        self, test: CharTest | None = None, condition: Callable[[str, int], bool] | None = None
    ) -> _State:
        self._states += 1
        if self._states > STATE_LIMIT:
            raise InvalidRegex("the expression is too large")
        return _State(test, condition)

    def _single(
        self, test: CharTest | None = None, condition: Callable[[str, int], bool] | None = None
    ) -> _Fragment:
        start, end = self._state(test, condition), self._state()
        start.next.append(end)
        return start, end

    def _sequence(self, parts: Iterable[_Fragment]) -> _Fragment:
        start = end = self._state()
        for first, last in parts:
            end.next.append(first)
            end = last
        return start, end

    # ------------------------------------------------------------ reading

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise InvalidRegex("unexpected end of the expression")
        self._at += 1
        return char

    def _accept(self, prefix: str) -> bool:
        if self._text.startswith(prefix, self._at):
            self._at += len(prefix)
            return True
        return False

    def _until(self, end: str) -> str:
        position = self._text.find(end, self._at)
        if position < 0:
            raise InvalidRegex(f"missing {end}")
        taken = self._text[self._at : position]
        self._at = position + len(end)
        return taken

    # ------------------------------------------------------------ grammar

    def _alternatives(self) -> _Fragment:
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise InvalidRegex("the expression is nested too deeply")
        branches = [self._branch()]
        while self._accept("|"):
            branches.append(self._branch())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        start, end = self._state(), self._state()
        for first, last in branches:
            start.next.append(first)
            last.next.append(end)
        return start, end

    def _branch(self) -> _Fragment:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return self._sequence(parts)

    def _repeated(self) -> _Fragment:
        begin = self._at
        fragment = self._atom()
        end = self._at
        if self._text.startswith("\\Q", begin):
            return fragment
        bounds = self._quantifier()
        if bounds is None:
            return fragment
        self._accept("?")
        if self._peek() in ("*", "+", "?") and self._peek():
            raise InvalidRegex("a repeat of a repeat")
        after, folded = self._at, self._folded
        least, most = bounds

        def again() -> _Fragment:
            self._at = begin
            copy = self._atom()
            assert self._at == end
            return copy

        parts = [fragment if index == 0 else again() for index in range(least)]
        if most is None:
            loop = again() if parts else fragment
            parts.append(self._star(loop))
        else:
            for index in range(least, most):
                parts.append(self._optional(fragment if index == 0 else again()))
        self._at, self._folded = after, folded
        return self._sequence(parts)

    def _star(self, fragment: _Fragment) -> _Fragment:
        hub, end = self._state(), self._state()
        hub.next += (fragment[0], end)
        fragment[1].next.append(hub)
        return hub, end

    def _optional(self, fragment: _Fragment) -> _Fragment:
        start = self._state()
        start.next += fragment
        return start, fragment[1]

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._accept("*"):
            return 0, None
        if self._accept("+"):
            return 1, None
        if self._accept("?"):
            return 0, 1
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            return None  # not a repeat: a brace like any character
        self._at = end + 1
        least = int(low[:6])
        most = least if not comma else int(high[:6]) if high else None
        if least > REPEAT_LIMIT or (most is not None and (most > REPEAT_LIMIT or most < least)):
            raise InvalidRegex(f"bad repeat {{{low}{comma}{high}}}")
        return least, most

    def _atom(self) -> _Fragment:
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._single(self._char_class())
            case ".":
                return self._single(lambda c: c != "\n")
            case "^":
                return self._single(condition=_at_start)
            case "$":
                return self._single(condition=_at_end)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise InvalidRegex(f"nothing to repeat before {char}")
        return self._single(_is(char, self._folded))

    def _group(self) -> _Fragment:
        folded = self._folded
        if self._accept("?"):
            if self._accept("P<") or (
                self._peek() == "<"
                and not self._text.startswith(("<=", "<!"), self._at)
                and self._accept("<")
            ):
                name = self._until(">")
                if not name or not all(_POSIX["word"](c) for c in name):
                    raise InvalidRegex(f"bad group name {name!r}")
            elif self._flags():
                return self._sequence(())
        fragment = self._alternatives()
        if not self._accept(")"):
            raise InvalidRegex("missing )")
        self._folded = folded
        return fragment

    def _flags(self) -> bool:
        """Read flags; True if they stand alone as in (?i), so that they hold to the end of the group."""
        value = True
        while True:
            char = self._take()
            if char == ":":
                return False
            if char == ")":
                return True
            if char == "-" and value:
                value = False
            elif char == "i":
                self._folded = value
            elif char not in "msU":
                raise InvalidRegex(f"unsupported group (?{char}")

    def _escape(self) -> _Fragment:
        char = self._take()
        if char == "A":
            return self._single(condition=_at_start)
        if char == "z":
            return self._single(condition=_at_end)
        if char == "b":
            return self._single(condition=_at_word_boundary)
        if char == "B":
            return self._single(condition=lambda text, at: not _at_word_boundary(text, at))
        if char == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
            self._at += len(quoted) + (0 if end < 0 else 2)
            return self._sequence([self._single(_is(c, self._folded)) for c in quoted])
        test = self._escaped_class(char)
        return self._single(test if test is not None else _is(self._escaped_char(char), self._folded))

    def _escaped_class(self, char: str) -> CharTest | None:
        if char.lower() not in _PERL:
            return None
        test = _POSIX[_PERL[char.lower()]]
        return test if char.islower() else _not(test)

    def _escaped_char(self, char: str) -> str:
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            digits = self._until("}") if self._accept("{") else self._take() + self._take()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError) as error:
                raise InvalidRegex(f"bad escape \\x{digits}") from error
        if char.isalnum():
            raise InvalidRegex(f"unsupported escape \\{char}")
        return char

    # ------------------------------------------------------------ character classes

    def _char_class(self) -> CharTest:
        negated = self._accept("^")
        tests: list[CharTest] = []
        first = True
        while first or self._peek() != "]":
            first = False
            test, char = self._class_item()
            if char and self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                _, last = self._class_item()
                if not last or last < char:
                    raise InvalidRegex(f"bad range {char}-{last}")
                test = self._range(char, last)
            tests.append(test)
        self._at += 1

        def within(c: str) -> bool:
            return any(test(c) for test in tests)

        return _not(within) if negated else within

    def _range(self, first: str, last: str) -> CharTest:
        if self._folded:
            return lambda c: first <= c <= last or first <= c.lower() <= last or first <= c.upper() <= last
        return lambda c: first <= c <= last

    def _class_item(self) -> tuple[CharTest, str]:
        """One element of a class, and the character it is if it is one."""
        if self._accept("[:"):
            name = self._until(":]")
            test = _POSIX.get(name.removeprefix("^"))
            if test is None:
                raise InvalidRegex(f"unknown class [:{name}:]")
            return (_not(test) if name.startswith("^") else test), ""
        char = self._take()
        if char == "\\":
            char = self._take()
            escaped = self._escaped_class(char)
            if escaped is not None:
                return escaped, ""
            char = self._escaped_char(char)
        return _is(char, self._folded), char


class TopicRegex:
    """A compiled expression."""

    __slots__ = ("_end", "_start", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._start, self._end = _Parser(expression).parse()

    def __repr__(self) -> str:
        return f"<TopicRegex {self.expression}>"

    def matches(self, name: str) -> bool:
        """Does the expression match the whole name?"""
        states = _reachable([self._start], name, 0)
        for at, char in enumerate(name):
            if not states:
                return False
            following = [
                after
                for state in states
                if state.test is not None and state.test(char)
                for after in state.next
            ]
            states = _reachable(following, name, at + 1)
        return self._end in states


def _reachable(states: list[_State], text: str, at: int) -> dict[_State, None]:
    """Everything that can be reached without a character."""
    seen: dict[_State, None] = {}
    while states:
        state = states.pop()
        if state in seen:
            continue
        seen[state] = None
        if state.test is None and (state.condition is None or state.condition(text, at)):
            states += state.next
    return seen

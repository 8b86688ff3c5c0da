"""Names and filters of MQTT topics, and the tree that finds who subscribed to a name (sections 4.7, 4.8)."""

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

TOPIC_BYTES_MAX = 65_535
LEVELS_MAX = 200
SHARE_PREFIX = "$share/"

Key = TypeVar("Key")
Value = TypeVar("Value")


def topic_fault(topic: str) -> str | None:
    """Why this is no name to publish to; None if it is one."""
    if not topic:
        return "a topic has at least one character"
    if "+" in topic or "#" in topic:
        return "a topic that is published to has no wildcards"
    if topic.count("/") >= LEVELS_MAX:
        return f"a topic has at most {LEVELS_MAX} levels"
    return None


def filter_fault(text: str) -> str | None:
    """Why this is no filter; None if it is one. The part of a shared filter behind its share is one."""
    if not text:
        return "a filter has at least one character"
    levels = text.split("/")
    if len(levels) > LEVELS_MAX:
        return f"a filter has at most {LEVELS_MAX} levels"
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            return "# stands alone, as the last level"
        if "+" in level and level != "+":
            return "+ stands alone in its level"
    return None


class Share(NamedTuple):
    """A shared subscription: `$share/name/filter`."""

    name: str
    filter: str


def read_share(text: str) -> Share | None:
    """The parts of a shared filter; None for an ordinary one. Raises ValueError for a bad one."""
    if not text.startswith(SHARE_PREFIX):
        return None
    name, slash, inner = text[len(SHARE_PREFIX) :].partition("/")
    if not slash or not name or "+" in name or "#" in name:
        raise ValueError("a shared filter is $share/NAME/FILTER; the name has no wildcards")
    return Share(name, inner)


def matches(text: str, topic: str) -> bool:
    """Whether the filter of a subscription covers a topic; names with $ are not met by a first wildcard."""
    if topic[:1] == "$" and text[:1] in ("+", "#"):
        return False
    return covers(text, topic)


def covers(text: str, topic: str) -> bool:
    """The same for rules, whose wildcards stand for every name."""
    levels = topic.split("/")
    wanted = text.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def overlap(rule: str, text: str) -> bool:
    """Whether there can be a topic that a rule and the filter of a subscription cover."""
    if rule[:1] == "$" and text[:1] in ("+", "#"):
        return False
    left, right = rule.split("/"), text.split("/")
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else None
        b = right[index] if index < len(right) else None
        if a == "#" or b == "#":
            return True
        if a is None or b is None or not (a == b or a == "+" or b == "+"):
            return False
    return True


class _Node(Generic[Key, Value]):
    __slots__ = ("children", "here", "many")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Key, Value]] = {}
        #: of filters that end here
        self.here: dict[Key, Value] = {}
        #: of filters that go on with #
        self.many: dict[Key, Value] = {}


class FilterTree(Generic[Key, Value]):
    """Filters with what belongs to them; one value for each filter and key."""

    def __init__(self) -> None:
        self._root: _Node[Key, Value] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, text: str, key: Key, value: Value) -> None:
        node = self._root
        for level in text.split("/"):
            if level == "#":
                self._count += key not in node.many
                node.many[key] = value
                return
            node = node.children.setdefault(level, _Node())
        self._count += key not in node.here
        node.here[key] = value

    def remove(self, text: str, key: Key) -> None:
        """Nodes that nobody needs any more go as well."""
        path: list[tuple[_Node[Key, Value], str]] = []
        node = self._root
        for level in text.split("/"):
            if level == "#":
                self._count -= node.many.pop(key, None) is not None
                break
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        else:
            self._count -= node.here.pop(key, None) is not None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.here or child.many:
                break
            del parent.children[level]

    def match(self, topic: str) -> Iterator[tuple[Key, Value]]:
        """Everything whose filter covers the topic; a key comes once for each of its filters."""
        levels = topic.split("/")
        special = topic[:1] == "$"
        last = len(levels)
        waiting = [(self._root, 0)]
        while waiting:
            node, index = waiting.pop()
            wild = not (special and index == 0)
            if node.many and wild:
                yield from node.many.items()
            if index == last:
                yield from node.here.items()
                continue
            children = node.children
            if children:
                child = children.get(levels[index])
                if child is not None:
                    waiting.append((child, index + 1))
                if wild and (child := children.get("+")) is not None:
                    waiting.append((child, index + 1))

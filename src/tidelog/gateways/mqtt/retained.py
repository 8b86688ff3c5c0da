"""Retained messages, as their topic has them: one for each MQTT topic, found by filters."""

from collections.abc import Iterator

from tidelog.gateways.mqtt.messages import Message


class _Node:
    __slots__ = ("children", "message", "offset")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None
        #: of its record; an older one changes nothing
        self.offset = -1


class Retained:
    """All of them, in memory; `messages_max` and `bytes_max` say from where on there is no room."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._root = _Node()
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size_bytes = 0

    def __repr__(self) -> str:
        return f"<Retained messages={self.count} bytes={self.size_bytes}>"

    def has_room(self, message: Message) -> bool:
        """Whether a message can be kept; one that takes another's place or takes it away always can."""
        if not message.payload or self.get(message.topic) is not None:
            return True
        return self.count < self._messages_max and self.size_bytes + _size(message) <= self._bytes_max

    def get(self, topic: str) -> Message | None:
        node: _Node | None = self._root
        for level in topic.split("/"):
            node = node.children.get(level) if node is not None else None
        return node.message if node is not None else None

    def put(self, topic: str, message: Message | None, offset: int) -> None:
        """Take over what a record says; None takes the message away."""
        node = self._root
        for level in topic.split("/"):
            node = node.children.setdefault(level, _Node())
        if offset <= node.offset:
            return
        node.offset = offset
        if node.message is not None:
            self.count -= 1
            self.size_bytes -= _size(node.message)
        node.message = message
        if message is not None:
            self.count += 1
            self.size_bytes += _size(message)

    def match(self, text: str) -> Iterator[Message]:
        """Those that a filter covers."""
        levels = text.split("/")
        waiting = [(self._root, 0)]
        while waiting:
            node, index = waiting.pop()
            if index == len(levels):
                if node.message is not None:
                    yield node.message
                continue
            level = levels[index]
            if level == "#":
                yield from _below(node, skip_special=index == 0)
            elif level == "+":
                waiting += [
                    (child, index + 1) for name, child in node.children.items() if index or name[:1] != "$"
                ]
            elif level in node.children:
                waiting.append((node.children[level], index + 1))


def _below(node: _Node, *, skip_special: bool) -> Iterator[Message]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.message is not None:
            yield each.message
        waiting += [
            child
            for name, child in each.children.items()
            if not (skip_special and each is node and name[:1] == "$")
        ]


def _size(message: Message) -> int:
    return len(message.payload) + 2 * len(message.topic) + 200

"""What the group handlers share: durations, topic ids, and answers put together from several coordinators."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.image import ClusterImage

_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(duration: timedelta) -> int:
    return duration // _MILLISECOND


def topic_name(image: ClusterImage, topic: Any) -> str | None:
    """The name of a requested topic, which newer versions give by id; None for an unknown id."""
    if hasattr(topic, "name"):
        return str(topic.name)
    return image.topic_names_by_id.get(topic.topic_id)


def with_topic_ids(image: ClusterImage, topics: Any, *, wanted: bool) -> list[Mapping[str, object]]:
    """Answered topics under their ids as well, where the version answers by id."""
    if not wanted:
        return list(topics)
    known = image.topics
    return [
        {**topic, "topic_id": known[topic["name"]].topic_id if topic["name"] in known else None}
        for topic in topics
    ]


class Gathered:
    """An answer made of several, each of which may come later."""

    __slots__ = ("_finish", "_missing", "_parts", "delayed")

    def __init__(self, count: int, finish: Callable[[list[Any]], Mapping[str, object]]) -> None:
        self.delayed = DelayedAnswer()
        self._parts: list[Any] = [None] * count
        self._missing = count
        self._finish = finish
        if count == 0:
            self.delayed.answer(finish([]))

    def put(self, index: int, part: Any) -> None:
        assert self._parts[index] is None
        self._parts[index] = part
        self._missing -= 1
        if self._missing == 0:
            self.delayed.answer(self._finish(self._parts))

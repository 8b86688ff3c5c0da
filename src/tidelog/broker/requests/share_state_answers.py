"""Answers the requests of share coordinators (keys 83 to 87): one command for each share partition."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.coordinators.share_state_requests import command_of, coordinator_key, malformed
from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.shares.coordinator import refusal
from tidelog.shares.schemas import ShareKey

if TYPE_CHECKING:
    from tidelog.broker.coordinators.share_state_coordinator import ShareStateCoordinator

_NO_TOPIC = UUID(int=0)


def answer_each(coordinator: "ShareStateCoordinator", request: Request) -> DelayedAnswer:
    """Answer when the last share partition has an answer."""
    body, api_key = request.body, request.api.key
    if not body.group_id or not all(topic.partitions for topic in body.topics):
        # As in Kafka: what is asked about nothing is not looked at.
        return _empty()
    asked = [
        (ShareKey(body.group_id, topic.topic_id or _NO_TOPIC, part.partition), part)
        for topic in body.topics
        for part in topic.partitions
    ]
    gathered = Gathered(len(asked), lambda rows: _by_topic([key for key, _ in asked], rows))
    for number, (key, part) in enumerate(asked):
        put = partial(gathered.put, number)
        fault = malformed(api_key, part)
        if fault is not None:
            put(refusal(key, Refused(ErrorCode.INVALID_REQUEST, fault)))
            continue
        error = coordinator.ask(
            coordinator_key(key),
            lambda token, key=key, part=part: command_of(api_key, token, key, part),  # type: ignore[misc]
            put,
        )
        if error:
            put(refusal(key, Refused(error)))
    return gathered.delayed


def _empty() -> DelayedAnswer:
    delayed = DelayedAnswer()
    delayed.answer({"results": ()})
    return delayed


def _by_topic(keys: list[ShareKey], rows: list[Any]) -> Mapping[str, object]:
    topics: dict[UUID, list[Any]] = {}
    for key, row in zip(keys, rows, strict=True):
        topics.setdefault(key.topic_id, []).append(row)
    return {"results": [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()]}

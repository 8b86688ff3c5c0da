"""Asks share coordinators, here and on other brokers, for what is stored of share partitions.

A broker is asked one request of a kind and group at a time; what comes meanwhile goes together in the next
one. What met no coordinator, or none that is ready, is asked again, of whoever leads the partition of
`__share_group_state` by then, until a deadline. Whoever asks is answered once, always on a later call of the
loop or in this one, and must not care which.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from tidelog.broker.coordinators.share_state_coordinator import ShareStateCoordinator
from tidelog.broker.coordinators.share_state_requests import (
    API_KEYS,
    StateAnswer,
    StateCommand,
    answer_of,
    answers_of,
    coordinator_key,
    request_fields,
    version_of,
)
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.broker.runtime.timers import Timers
from tidelog.client.requests import MalformedAnswer, decode_response, encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER

log = logging.getLogger(__name__)

Then = Callable[[StateAnswer], None]

#: a share coordinator waits for replicas: not before requests that do not
SHARES_CHANNEL = "shares"
PARTITIONS_PER_REQUEST_MAX = 1_000
#: for how long there may be no coordinator before that is the answer
GIVE_UP_MS = 15_000
BACKOFF_MS = 50
BACKOFF_MS_MAX = 1_000

_ASK_AGAIN = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    )
)


class _Asked(NamedTuple):
    command: StateCommand
    then: Then
    until_ms: int
    backoff_ms: int


_QueueKey = tuple[int, int, str]


class SharePersister:
    """The way from leaders of partitions and of groups to share coordinators."""

    def __init__(
        self,
        coordinator: ShareStateCoordinator,
        metadata: Metadata,
        peers: Peers,
        settings: LiveSettings,
        timers: Timers,
        node_id: int,
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._peers = peers
        self._settings = settings
        self._timers = timers
        self._node_id = node_id
        self._queues: dict[_QueueKey, list[_Asked]] = {}
        self._under_way: set[_QueueKey] = set()

    def __repr__(self) -> str:
        waiting = sum(map(len, self._queues.values()))
        return f"<SharePersister requests={len(self._under_way)} waiting={waiting}>"

    def ask(self, command: StateCommand, then: Then) -> None:
        """Have a share coordinator carry out a command, whose token is of no matter here."""
        until_ms = self._timers.monotonic_ms() + GIVE_UP_MS
        self._ask(_Asked(command, then, until_ms, BACKOFF_MS))

    def _ask(self, asked: _Asked) -> None:
        topic = self._coordinator.topic
        key = coordinator_key(asked.command.key)
        if topic.name not in self._metadata.image.topics:
            # The outcome is that it is there or not; both are found out by asking again.
            topic.create(lambda: self._ask_existing(asked, key))
        else:
            self._ask_existing(asked, key)

    def _ask_existing(self, asked: _Asked, key: str) -> None:
        topic = self._coordinator.topic
        state = self._metadata.image.partition(topic.name, topic.partition_for(key))
        if state is None or state.leader == NO_LEADER:
            self._answered(asked, StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif state.leader == self._node_id:
            self._ask_here(asked, key)
        else:
            command = asked.command
            queue_key = (state.leader, API_KEYS[type(command)], command.key.group_id)
            self._queues.setdefault(queue_key, []).append(asked)
            self._send_queued(queue_key)

    def _ask_here(self, asked: _Asked, key: str) -> None:
        error = self._coordinator.ask(
            key,
            lambda token: replace(asked.command, token=token),
            lambda fields: self._answered(asked, answer_of(fields)),
        )
        if error is not ErrorCode.NONE:
            self._answered(asked, StateAnswer(error))

    def _answered(self, asked: _Asked, answer: StateAnswer) -> None:
        """Hand the answer on, or ask again."""
        left_ms = asked.until_ms - self._timers.monotonic_ms()
        if answer.error not in _ASK_AGAIN or left_ms <= 0:
            if answer.error is ErrorCode.NETWORK_EXCEPTION:
                answer = answer._replace(error=ErrorCode.REQUEST_TIMED_OUT)
            asked.then(answer)
            return
        again = asked._replace(backoff_ms=min(2 * asked.backoff_ms, BACKOFF_MS_MAX))
        wait_ms = min(asked.backoff_ms, left_ms)
        self._timers.set_after(("share state", object()), wait_ms, partial(self._ask, again))

    # ------------------------------------------------------------ to other brokers

    def _send_queued(self, queue_key: _QueueKey) -> None:
        queue = self._queues.get(queue_key)
        if not queue or queue_key in self._under_way:
            return
        broker_id, api_key, group_id = queue_key
        sent, left = queue[:PARTITIONS_PER_REQUEST_MAX], queue[PARTITIONS_PER_REQUEST_MAX:]
        if left:
            self._queues[queue_key] = left
        else:
            del self._queues[queue_key]
        self._under_way.add(queue_key)

        def answered(answer: memoryview | PeerFault) -> None:
            self._under_way.discard(queue_key)
            found = _read(api_key, group_id, answer)
            for asked in sent:
                self._answered(asked, found.get(asked.command.key, _NO_ANSWER))
            self._send_queued(queue_key)

        self._peers.request(
            broker_id,
            api_key,
            version_of(api_key),
            encode_request(
                api_key, version_of(api_key), request_fields(group_id, (each.command for each in sent))
            ),
            answered,
            timeout_ms=self._settings.get_int("share.coordinator.write.timeout.ms"),
            channel=SHARES_CHANNEL,
        )


_NO_ANSWER = StateAnswer(ErrorCode.NETWORK_EXCEPTION, "The share coordinator did not answer.")


def _read(api_key: int, group_id: str, answer: memoryview | PeerFault) -> Mapping[Any, StateAnswer]:
    """What came back for each share partition; nothing where no answer came."""
    if isinstance(answer, PeerFault):
        log.info("a share coordinator did not answer: %s", answer.reason)
        return {}
    try:
        return answers_of(group_id, decode_response(api_key, version_of(api_key), answer))
    except MalformedAnswer as fault:
        log.warning("an answer of a share coordinator could not be read: %s", fault)
        return {}

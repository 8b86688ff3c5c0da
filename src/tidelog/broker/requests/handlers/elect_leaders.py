"""ElectLeaders (key 43), versions 0 to 2: give leadership to the preferred replica, or to any that lives.

Version 0 knows preferred leaders alone. Election type 1 elects a replica that was not in sync where no other
lives (KIP-460): acknowledged records may be lost. A partition that needs no election is answered with
ELECTION_NOT_NEEDED; when null partitions ask for all, such partitions are left out.

An unclean election takes the longest log. A broker that has just returned says in a moment how long its own
is: for that the request waits, up to `unclean.recovery.timeout.ms` and half of its own timeout. Then the
longest log leads that is known.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import ElectionType, ElectLeaders, LeadersElected, Result
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


ELECTION_TYPES = frozenset(ElectionType)
ASK_AGAIN_MS = 100


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller elect and answer for every partition."""

    metadata: Metadata
    settings: LiveSettings
    timers: Timers

    def handle(self, request: Request) -> "Mapping[str, object] | DelayedAnswer":
        body = request.body
        election_type = getattr(body, "election_type", ElectionType.PREFERRED)
        partitions = None
        if body.topic_partitions is not None:
            partitions = tuple(
                dict.fromkeys(
                    TopicPartition(topic.topic, index)
                    for topic in body.topic_partitions
                    for index in topic.partitions
                )
            )
        if election_type not in ELECTION_TYPES:
            refused = Refused(ErrorCode.INVALID_REQUEST, f"there is no election type {election_type}")
            return _answer(refused, partitions)
        delayed = DelayedAnswer()
        election = _Election(self.metadata, self.timers, ElectionType(election_type), partitions, delayed)
        # The client waits no longer than its timeout, and the answer takes a way.
        timeout_ms = int(body.timeout.total_seconds() * 1000) // 2
        election.ask(patient_ms=min(timeout_ms, self.settings.get_int("unclean.recovery.timeout.ms")))
        return delayed


class _Election:
    """One request: what the controller has answered, and what it is asked again."""

    def __init__(
        self,
        metadata: Metadata,
        timers: Timers,
        type: ElectionType,
        asked: tuple[TopicPartition, ...] | None,
        delayed: DelayedAnswer,
    ) -> None:
        self._metadata = metadata
        self._timers = timers
        self._type = type
        self._asked = asked
        self._delayed = delayed
        self._outcomes: dict[TopicPartition, Refused | None] = {}

    def ask(self, patient_ms: int, again: tuple[TopicPartition, ...] | None = None) -> None:
        """Have leaders elected; where a replica's word is missing, again and again for `patient_ms`."""
        patient = self._type is ElectionType.UNCLEAN and patient_ms > 0
        partitions = self._asked if again is None else again

        def elected(results: tuple[Result, ...]) -> None:
            [result] = results
            if not isinstance(result, LeadersElected):
                self._delayed.answer(_answer(result, self._asked))
                return
            self._take(result, repeated=again is not None)
            if result.silent:
                self._timers.set_after(
                    ("election", id(self)),
                    ASK_AGAIN_MS,
                    lambda: self.ask(patient_ms - ASK_AGAIN_MS, result.silent),
                )
            else:
                outcomes = LeadersElected(tuple(self._outcomes.items()))
                self._delayed.answer(_answer(outcomes, self._asked))

        self._metadata.submit(ElectLeaders(self._type, partitions, patient), elected)

    def _take(self, result: LeadersElected, *, repeated: bool) -> None:
        for name, refused in result.outcomes:
            needless = refused is not None and refused.code is ErrorCode.ELECTION_NOT_NEEDED
            if repeated and needless and self._asked is None:
                self._outcomes.pop(name, None)
            else:
                self._outcomes[name] = refused


def _answer(result: Result, asked: tuple[TopicPartition, ...] | None) -> "Mapping[str, object]":
    """The outcomes by topic; a refusal of the whole is also told of each partition, for version 0."""
    outcomes: tuple[tuple[TopicPartition, Refused | None], ...]
    top_level = ErrorCode.NONE
    if isinstance(result, LeadersElected):
        outcomes = result.outcomes
    else:
        assert isinstance(result, Refused)
        top_level = result.code
        outcomes = tuple((place, result) for place in asked or ())
    by_topic: dict[str, list[dict[str, object]]] = {}
    for (topic, index), refused in outcomes:
        by_topic.setdefault(topic, []).append({"partition_id": index, **error_fields(refused)})
    return {
        "error_code": top_level,
        "replica_election_results": [
            {"topic": topic, "partition_result": rows} for topic, rows in by_topic.items()
        ],
    }

"""Of which partitions share coordinators have state, as a group knows it: asked for, begun with, forgotten.

What is asked of share coordinators is written down before it is asked, and again when they have answered.
What was asked for and not answered, because this coordinator or the other one was gone, is asked for again:
beginning is idempotent within a state epoch, forgetting always."""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.groups.commands import DeleteShareState, InitializeShareState, ShareStateAnswered
from tidelog.groups.consumer_schemas import Partition
from tidelog.groups.durable import DurableGroups
from tidelog.groups.share_group import ShareDraft, ShareGroup
from tidelog.groups.share_schemas import StatePartitions, TopicState
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox

BY_SETTING = -1
"""A start offset that `share.auto.offset.reset` decides."""

Results = Mapping[Partition, ErrorCode]
Topics = Mapping[UUID, frozenset[int]]


class _Asked(NamedTuple):
    then: Callable[[Results, int], None]
    given_up: Callable[[ErrorCode], None]


class ShareStates:
    """Asks share coordinators, and goes on when they have answered."""

    __slots__ = ("_asked", "_beginning", "_durable", "_forgetting", "_number", "_outbox", "image")

    def __init__(self, durable: DurableGroups, outbox: Outbox) -> None:
        self._durable = durable
        self._outbox = outbox
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._beginning: dict[int, str] = {}
        self._forgetting: dict[int, str] = {}
        """The groups for which share coordinators are being asked, by number."""
        self.image = ClusterImage()

    def _next(self, then: Callable[[Results, int], None], given_up: Callable[[ErrorCode], None]) -> int:
        self._number += 1
        self._asked[self._number] = _Asked(then, given_up)
        return self._number

    def initialize(
        self,
        group_id: str,
        state_epoch: int,
        start_offsets: Mapping[Partition, int],
        answer: Callable[[Results], None],
        given_up: Callable[[ErrorCode], None],
    ) -> None:
        """Have share coordinators begin; `answer` comes when their answer is written down."""

        def then(results: Results, now_ms: int) -> None:
            group = self._durable.share_groups.get(group_id)
            if group is None:
                answer(dict.fromkeys(results, ErrorCode.GROUP_ID_NOT_FOUND))
                return
            draft = ShareDraft(group)
            draft.put_states(_settled(group.states, results))
            if ErrorCode.FENCED_STATE_EPOCH in results.values():
                draft.overtake(self.image)
            self._outbox.append(
                draft.records,
                on_appended=lambda now_ms: answer(results),
                on_failed=lambda error, now_ms: given_up(error),
            )

        number = self._next(then, given_up)
        self._beginning[number] = group_id
        offsets = tuple(sorted(start_offsets.items()))
        self._outbox.send(InitializeShareState(number, group_id, state_epoch, offsets))

    def delete(
        self,
        group_id: str,
        partitions: frozenset[Partition],
        then: Callable[[Results, int], None],
        given_up: Callable[[ErrorCode], None],
    ) -> None:
        """Have share coordinators forget; `then` comes with their answer."""
        if not partitions:
            then({}, 0)
            return
        number = self._next(then, given_up)
        self._forgetting[number] = group_id
        self._outbox.send(DeleteShareState(number, group_id, tuple(sorted(partitions))))

    def without_abandoned(self, group: ShareGroup) -> StatePartitions:
        """The states of a group without what was to begin anew and may have: whoever asked for it was not
        answered, and the partitions have state in any case.
        """
        states = group.states
        if group.group_id in self._beginning.values():
            return states
        initializing = {}
        for topic_id, asked in states.initializing.items():
            begun = states.initialized.get(topic_id)
            left = asked.partitions if begun is None else asked.partitions - begun.partitions
            if left:
                initializing[topic_id] = asked._replace(partitions=left)
        return states if initializing == states.initializing else states._replace(initializing=initializing)

    def is_forgetting(self, group_id: str) -> bool:
        """Are share coordinators just asked to forget something of a group? What begins now could be what
        they forget.
        """
        return group_id in self._forgetting.values()

    def answered(self, command: ShareStateAnswered, now_ms: int) -> None:
        asked = self._asked.pop(command.number, None)
        self._forgetting.pop(command.number, None)
        self._beginning.pop(command.number, None)
        if asked is not None:
            asked.then(dict(command.results), now_ms)

    def resign(self) -> None:
        """Whoever waits for share coordinators must ask elsewhere."""
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            waiting.given_up(ErrorCode.NOT_COORDINATOR)

    def partitions_of(self, topic_id: UUID) -> frozenset[int]:
        """Those that there are of a topic."""
        name = self.image.topic_names_by_id.get(topic_id)
        return frozenset() if name is None else frozenset(range(len(self.image.topics[name].partitions)))


def beginning(states: StatePartitions, topics: Topics, names: Mapping[UUID, str]) -> StatePartitions:
    """The states once share coordinators are asked to begin with these partitions."""
    initializing = dict(states.initializing)
    for topic_id, indexes in topics.items():
        known = initializing.get(topic_id)
        both = indexes if known is None else indexes | known.partitions
        initializing[topic_id] = TopicState(names[topic_id], both)
    deleting = {topic_id: name for topic_id, name in states.deleting.items() if topic_id not in topics}
    return states._replace(initializing=initializing, deleting=deleting)


def _settled(states: StatePartitions, results: Results) -> StatePartitions:
    """The states after share coordinators have answered: begun with, or to be asked for anew."""
    initializing, initialized = dict(states.initializing), dict(states.initialized)
    for (topic_id, index), error in results.items():
        asked = initializing.get(topic_id)
        if asked is None or index not in asked.partitions:
            continue
        left = asked.partitions - {index}
        if left:
            initializing[topic_id] = asked._replace(partitions=left)
        else:
            del initializing[topic_id]
        if error is ErrorCode.NONE:
            known = initialized.get(topic_id)
            begun = frozenset() if known is None else known.partitions
            initialized[topic_id] = TopicState(asked.name, begun | {index})
    return states._replace(initializing=initializing, initialized=initialized)


def without_topics(states: StatePartitions, gone: Callable[[UUID, str], bool]) -> StatePartitions:
    """The states without topics that are not there any more."""
    return StatePartitions(
        {topic: state for topic, state in states.initializing.items() if not gone(topic, state.name)},
        {topic: state for topic, state in states.initialized.items() if not gone(topic, state.name)},
        {topic: name for topic, name in states.deleting.items() if not gone(topic, name)},
    )

"""AlterShareGroupOffsets, DeleteShareGroupOffsets and DeleteGroups of share groups, and deleted topics.

All of them are for groups without members. What they do is with share coordinators: the group writes down
what is to happen, asks them, and answers when it is done and written down. A request that did not come to its
end can be repeated."""

from uuid import UUID

from tidelog.groups import share_responses
from tidelog.groups.classic_draft import ClassicGroups
from tidelog.groups.commands import AlterShareOffsets, DeleteGroup, DeleteShareOffsets
from tidelog.groups.consumer_schemas import Partition
from tidelog.groups.durable import DurableGroups
from tidelog.groups.responses import Response
from tidelog.groups.share_group import ShareDraft, ShareGroup
from tidelog.groups.share_schemas import StatePartitions, TopicState
from tidelog.groups.share_states import Results, ShareStates, beginning, without_topics
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

_NOTHING_THERE = "There is no offset information to delete."


class ShareOffsetRequests:
    """Answers when share coordinators have."""

    __slots__ = ("_durable", "_groups", "_outbox", "_states")

    def __init__(
        self,
        groups: ClassicGroups,
        durable: DurableGroups,
        outbox: Outbox,
        states: ShareStates,
    ) -> None:
        self._groups = groups
        self._durable = durable
        self._outbox = outbox
        self._states = states

    # ------------------------------------------------------------ AlterShareGroupOffsets

    def alter(self, command: AlterShareOffsets) -> None:
        """Begin anew at given offsets, in an epoch of its own: what still runs in an older one is fenced."""
        group = self._idle_group(command.group_id, may_be_new=True)
        if isinstance(group, Refused):
            self._outbox.reply(command.token, share_responses.offsets_error(group))
            return
        image = self._states.image
        offsets: dict[Partition, int] = {}
        results: dict[str, dict[int, ErrorCode]] = {}
        for name, partitions in command.topics:
            topic = image.topics.get(name)
            for index, offset in partitions:
                there = topic is not None and 0 <= index < len(topic.partitions)
                error = ErrorCode.NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                results.setdefault(name, {})[index] = error
                if there and topic is not None:
                    offsets[topic.topic_id, index] = offset
        if not offsets:
            self._outbox.reply(command.token, self._altered(results, {}))
            return
        topics: dict[UUID, frozenset[int]] = {}
        for topic_id, index in offsets:
            topics[topic_id] = topics.get(topic_id, frozenset()) | {index}
        draft = ShareDraft(group)
        draft.bump_epoch(image)
        draft.put_states(beginning(group.states, topics, image.topic_names_by_id))

        def given_up(error: ErrorCode) -> None:
            refused = Refused(coordinator_error(error), "")
            self._outbox.reply(command.token, share_responses.offsets_error(refused))

        def settled(answers: Results) -> None:
            self._outbox.reply(command.token, self._altered(results, answers))

        def on_appended(now_ms: int) -> None:
            self._states.initialize(command.group_id, draft.group.epoch, offsets, settled, given_up)

        self._outbox.append(
            draft.records, on_appended=on_appended, on_failed=lambda error, now_ms: given_up(error)
        )

    def _altered(self, results: dict[str, dict[int, ErrorCode]], answers: Results) -> Response:
        topics = []
        for name, partitions in results.items():
            topic = self._states.image.topics.get(name)
            topic_id = share_responses.NO_TOPIC_ID if topic is None else topic.topic_id
            final = {
                index: answers.get((topic_id, index), ErrorCode.NONE) if error is ErrorCode.NONE else error
                for index, error in partitions.items()
            }
            topics.append(share_responses.altered_topic(name, topic_id, final))
        return share_responses.offsets(topics)

    def _idle_group(self, group_id: str, *, may_be_new: bool) -> ShareGroup | Refused:
        group = self._durable.share_groups.get(group_id)
        if self._states.is_forgetting(group_id):
            message = f"The state of share group {group_id} is just being deleted."
            return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        if group is not None:
            if group.members:
                return Refused(ErrorCode.NON_EMPTY_GROUP, f"Share group {group_id} has members.")
            return group
        if group_id in self._durable.consumer_groups or group_id in self._groups:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if may_be_new:
            return ShareGroup(group_id)
        return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")

    # ------------------------------------------------------------ DeleteShareGroupOffsets

    def delete_offsets(self, command: DeleteShareOffsets) -> None:
        group = self._idle_group(command.group_id, may_be_new=False)
        if isinstance(group, Refused):
            self._outbox.reply(command.token, share_responses.offsets_error(group))
            return
        image, states = self._states.image, group.states
        refused: list[Response] = []
        names: dict[UUID, str] = {}
        partitions: set[Partition] = set()
        for name in command.topics:
            topic = image.topics.get(name)
            if topic is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(share_responses.deleted_topic(name, share_responses.NO_TOPIC_ID, error))
                continue
            known = self._known(states, topic.topic_id)
            if not known:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                no_id = share_responses.NO_TOPIC_ID
                refused.append(share_responses.deleted_topic(name, no_id, error, _NOTHING_THERE))
                continue
            names[topic.topic_id] = name
            partitions.update((topic.topic_id, index) for index in known)
        if not names:
            self._outbox.reply(command.token, share_responses.offsets(refused))
            return
        draft = ShareDraft(group)
        draft.put_states(_deleting(states, names))

        def given_up(error: ErrorCode) -> None:
            fault = Refused(coordinator_error(error), "")
            self._outbox.reply(command.token, share_responses.offsets_error(fault))

        def then(results: Results, now_ms: int) -> None:
            self._offsets_deleted(command, names, refused, results)

        def on_appended(now_ms: int) -> None:
            self._states.delete(command.group_id, frozenset(partitions), then, given_up)

        self._outbox.append(
            draft.records, on_appended=on_appended, on_failed=lambda error, now_ms: given_up(error)
        )

    def _known(self, states: StatePartitions, topic_id: UUID) -> frozenset[int]:
        """The partitions of a topic of which there may be state."""
        if topic_id in states.deleting:
            return self._states.partitions_of(topic_id)
        nothing = TopicState("", frozenset())
        begun = states.initialized.get(topic_id, nothing).partitions
        return begun | states.initializing.get(topic_id, nothing).partitions

    def _offsets_deleted(
        self, command: DeleteShareOffsets, names: dict[UUID, str], refused: list[Response], results: Results
    ) -> None:
        errors = dict.fromkeys(names, ErrorCode.NONE)
        for (topic_id, _), error in results.items():
            if error is not ErrorCode.NONE:
                errors[topic_id] = error
        topics = [share_responses.deleted_topic(names[topic], topic, errors[topic]) for topic in names]
        response = share_responses.offsets([*refused, *topics])
        group = self._durable.share_groups.get(command.group_id)
        done = {topic_id for topic_id, error in errors.items() if error is ErrorCode.NONE}
        if group is None or not done:
            self._outbox.reply(command.token, response)
            return
        draft = ShareDraft(group)
        left = {topic: name for topic, name in group.states.deleting.items() if topic not in done}
        draft.put_states(group.states._replace(deleting=left))

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            fault = Refused(coordinator_error(error), "")
            self._outbox.reply(command.token, share_responses.offsets_error(fault))

        self._outbox.append(
            draft.records,
            on_appended=lambda now_ms: self._outbox.reply(command.token, response),
            on_failed=on_failed,
        )

    # ------------------------------------------------------------ DeleteGroups, deleted topics

    def delete_group(self, command: DeleteGroup, group: ShareGroup) -> None:
        """First its state at share coordinators, then the group."""
        idle = self._idle_group(command.group_id, may_be_new=False)
        if isinstance(idle, Refused):
            self._answer_deletion(command, idle.code)
            return
        states = group.states
        topics = {*states.initializing, *states.initialized, *states.deleting}
        there = {
            topic_id: self._states.image.topic_names_by_id[topic_id]
            for topic_id in sorted(topics)
            if topic_id in self._states.image.topic_names_by_id
        }
        partitions = frozenset(
            (topic_id, index) for topic_id in there for index in self._known(states, topic_id)
        )
        draft = ShareDraft(group)
        draft.put_states(StatePartitions(deleting=there))

        def given_up(error: ErrorCode) -> None:
            self._answer_deletion(command, coordinator_error(error))

        def then(results: Results, now_ms: int) -> None:
            fault = next((error for error in results.values() if error is not ErrorCode.NONE), None)
            left = self._durable.share_groups.get(command.group_id)
            if fault is not None:
                given_up(fault)
            elif left is None or left.members:
                error = ErrorCode.GROUP_ID_NOT_FOUND if left is None else ErrorCode.NON_EMPTY_GROUP
                self._answer_deletion(command, error)
            else:
                self._bury(command, left)

        def on_appended(now_ms: int) -> None:
            self._states.delete(command.group_id, partitions, then, given_up)

        self._outbox.append(
            draft.records, on_appended=on_appended, on_failed=lambda error, now_ms: given_up(error)
        )

    def _bury(self, command: DeleteGroup, group: ShareGroup) -> None:
        draft = ShareDraft(group)
        draft.bury()
        self._outbox.append(
            draft.records,
            on_appended=lambda now_ms: self._answer_deletion(command, ErrorCode.NONE),
            on_failed=lambda error, now_ms: self._answer_deletion(command, coordinator_error(error)),
        )

    def _answer_deletion(self, command: DeleteGroup, error: ErrorCode) -> None:
        self._outbox.reply(command.token, {"group_id": command.group_id, "error_code": error})

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: share coordinators forget it by themselves, and so do the groups."""
        ids = self._states.image.topic_names_by_id
        for group in self._durable.share_groups.values():
            kept = without_topics(group.states, lambda topic_id, of: of == name and topic_id not in ids)
            if kept != group.states:
                draft = ShareDraft(group)
                draft.put_states(kept)
                self._outbox.append(draft.records)


def _deleting(states: StatePartitions, names: dict[UUID, str]) -> StatePartitions:
    """The states once the state of these topics is to be forgotten."""
    kept = without_topics(states, lambda topic_id, _: topic_id in names)
    return kept._replace(deleting={**kept.deleting, **names})

"""ShareGroupHeartbeat (KIP-932): members of share groups join, report, are assigned and leave.

A heartbeat updates the member, computes a new target if the group's epoch is ahead of it, and brings the
member to its target, all in one append. Partitions are assigned once share coordinators have begun with their
state:

    heartbeat ─ a topic is read that has no state ─▶ initializing, InitializeShareState to share coordinators
    ShareStateAnswered ─▶ initialized; what failed is asked for again by a later heartbeat
    heartbeat ─ there is state nobody is assigned to ─▶ a new epoch and target

    ("share session", group, member)    the member was silent too long
"""

from uuid import UUID

from tidelog.groups import share_responses
from tidelog.groups.classic_draft import ClassicGroups, TimerKey
from tidelog.groups.commands import ShareHeartbeat
from tidelog.groups.consumer_group import JOINING_EPOCH, LEAVING_EPOCH
from tidelog.groups.consumer_schemas import Partitions
from tidelog.groups.durable import DurableGroups
from tidelog.groups.membership import Rebalances
from tidelog.groups.responses import Response
from tidelog.groups.settings import ConsumerTimes, GroupSettings
from tidelog.groups.share_group import ShareDraft, ShareGroup
from tidelog.groups.share_schemas import ShareMemberMetadata, StatePartitions
from tidelog.groups.share_states import BY_SETTING, ShareStates, beginning
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

SHARE_SESSION = "share session"
_NOT_ASKED = (-(1 << 62), frozenset[int]())


class ShareRequests:
    """Answers heartbeats and removes members; the groups change only as their records are applied."""

    __slots__ = ("_asked", "_checked", "_durable", "_groups", "_outbox", "_rebalances", "_states")

    def __init__(
        self,
        groups: ClassicGroups,
        durable: DurableGroups,
        outbox: Outbox,
        rebalances: Rebalances,
        states: ShareStates,
    ) -> None:
        self._groups = groups
        self._durable = durable
        self._outbox = outbox
        self._rebalances = rebalances
        self._states = states
        self._checked: dict[str, tuple[ClusterImage, StatePartitions]] = {}
        """What each group's subscriptions and targets were last held against."""
        self._asked: dict[tuple[str, UUID], tuple[int, frozenset[int]]] = {}
        """When share coordinators were last asked to begin with partitions of a topic. Not durable: after a
        move they are asked again."""

    @property
    def _settings(self) -> GroupSettings:
        return self._rebalances.settings

    @property
    def _image(self) -> ClusterImage:
        return self._states.image

    # ------------------------------------------------------------ the heartbeat

    def heartbeat(self, command: ShareHeartbeat, now_ms: int) -> None:
        if command.member_epoch == LEAVING_EPOCH:
            refused = self._leave(command, now_ms)
        else:
            refused = self._beat(command, now_ms)
        if refused is not None:
            self._outbox.reply(command.token, share_responses.heartbeat_error(refused))

    def _beat(self, command: ShareHeartbeat, now_ms: int) -> Refused | None:
        group = self._open(command)
        if isinstance(group, Refused):
            return group
        member_id = command.member_id
        refused = self._admission_fault(group, command)
        if refused is not None:
            return refused
        member = group.members.get(member_id)
        updated = _updated(member, command)
        if self._is_settled(group, command, updated):
            self._keep_session(group.group_id, member_id, now_ms)
            assigned = group.current_of(member_id).assigned
            self._answer_read(
                command, group, assigned if command.subscribed_topic_names is not None else None
            )
            return None
        draft = ShareDraft(group)
        if updated != member:
            draft.put_member(member_id, updated)
        resubscribed = member is None or updated.subscribed_topic_names != member.subscribed_topic_names
        self._refresh(draft, resubscribed=resubscribed)
        draft.follow_target(member_id)
        known = self._states.without_abandoned(draft.group)
        if known is not draft.group.states:
            draft.put_states(known)
        begins = self._to_begin(draft.group, now_ms)
        if begins:
            names = self._image.topic_names_by_id
            draft.put_states(beginning(draft.group.states, begins, names))
        self._keep_session(group.group_id, member_id, now_ms)
        self._store(command, draft, begins, group.current_of(member_id).assigned)
        return None

    def _open(self, command: ShareHeartbeat) -> ShareGroup | Refused:
        group_id = command.group_id
        group = self._durable.share_groups.get(group_id)
        if group is not None:
            return group
        if group_id in self._durable.consumer_groups or group_id in self._groups:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if command.member_epoch != JOINING_EPOCH:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        return ShareGroup(group_id)

    def _admission_fault(self, group: ShareGroup, command: ShareHeartbeat) -> Refused | None:
        member_id, epoch = command.member_id, command.member_epoch
        if member_id not in group.members:
            if len(group.members) >= self._settings.share_max_size:
                limit = self._settings.share_max_size
                message = f"The share group has reached its maximum capacity of {limit} members."
                return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
            if epoch == JOINING_EPOCH:
                return None
            message = f"Member {member_id} is not a member of group {group.group_id}."
            return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
        current = group.current_of(member_id)
        # The answer with the newest epoch may have been lost.
        missed = epoch == current.previous_epoch and epoch < current.epoch
        if epoch in (JOINING_EPOCH, current.epoch) or missed:
            return None
        message = (
            f"The member's epoch is {epoch}, the coordinator's {current.epoch}. "
            "The member must abandon all its partitions and rejoin."
        )
        return Refused(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def _is_settled(self, group: ShareGroup, command: ShareHeartbeat, updated: ShareMemberMetadata) -> bool:
        """The common case, without a draft: a member in the newest epoch says that it is alive."""
        checked = self._checked.get(group.group_id)
        return (
            group.members.get(command.member_id) == updated
            and command.member_epoch == group.current_of(command.member_id).epoch
            and command.member_epoch == group.assignment_epoch == group.epoch
            and checked is not None
            and checked[0] is self._image
            and checked[1] is group.states
            and not group.states.initializing
        )

    def _refresh(self, draft: ShareDraft, *, resubscribed: bool) -> None:
        """The epoch grows with a new subscription, with topics, and with state that is ready to be assigned;
        then the target is computed anew.
        """
        group, image = draft.group, self._image
        changed = resubscribed or group.metadata_hash(image) != group.metadata.metadata_hash
        if changed or (group.assignment_epoch >= group.epoch and group.lacks_assignment(image)):
            draft.bump_epoch(image)
            fields = {"group": group.group_id, "epoch": group.epoch, "members": len(group.members)}
            cause = "members, subscriptions or topics changed" if changed else "state is ready"
            self._outbox.event("share group has a new epoch", fields, cause)
        if group.epoch > group.assignment_epoch:
            draft.compute_targets(image)

    def _to_begin(self, group: ShareGroup, now_ms: int) -> dict[UUID, frozenset[int]]:
        """The partitions that share coordinators have to begin with, and are to be asked for now."""
        found: dict[UUID, frozenset[int]] = {}
        if self._states.is_forgetting(group.group_id):
            return found
        for name in group.subscribed():
            topic = self._image.topics.get(name)
            if topic is None:
                continue
            topic_id = topic.topic_id
            missing = frozenset(range(len(topic.partitions)))
            if topic_id in group.states.initialized:
                missing -= group.states.initialized[topic_id].partitions
            asked_ms, asked = self._asked.get((group.group_id, topic_id), _NOT_ASKED)
            waits = now_ms < asked_ms + self._settings.share_initialize_retry_ms
            if topic_id in group.states.initializing and waits:
                missing -= asked
            if missing:
                found[topic_id] = missing
                self._asked[group.group_id, topic_id] = now_ms, missing | (asked if waits else frozenset())
        return found

    # ------------------------------------------------------------ members go

    def _leave(self, command: ShareHeartbeat, now_ms: int) -> Refused | None:
        group = self._durable.share_groups.get(command.group_id)
        if group is None:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {command.group_id} not found.")
        if command.member_id not in group.members:
            message = f"Member {command.member_id} is not a member of group {command.group_id}."
            return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
        left = share_responses.heartbeat(command.member_id, LEAVING_EPOCH, 0, None)
        self._remove(group, command.member_id, answer=(command.token, left))
        return None

    def timer_fired(self, group_id: str, member_id: str, now_ms: int) -> None:
        group = self._durable.share_groups.get(group_id)
        if group is not None and member_id in group.members:
            self._remove(group, member_id, retry_timer=(SHARE_SESSION, group_id, member_id))

    def _remove(
        self,
        group: ShareGroup,
        member_id: str,
        *,
        answer: tuple[int, Response] | None = None,
        retry_timer: TimerKey | None = None,
    ) -> None:
        """A member is out, and the group's epoch grows; the next heartbeat computes the target."""
        draft = ShareDraft(group)
        draft.remove_member(member_id)
        draft.bump_epoch(self._image)
        self._outbox.cancel_timer((SHARE_SESSION, group.group_id, member_id))
        refused = False

        def taken_back() -> None:
            nonlocal refused
            refused = True

        def on_appended(now_ms: int) -> None:
            if answer is not None:
                self._outbox.reply(*answer)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            if answer is not None:
                self._outbox.reply(answer[0], _failed(error))
            if refused and retry_timer is not None:
                self._outbox.set_timer(retry_timer, now_ms + self._settings.append_retry_ms)

        self._outbox.append(draft.records, undo=taken_back, on_appended=on_appended, on_failed=on_failed)

    # ------------------------------------------------------------ storing, timers, loading

    def _answer_read(self, command: ShareHeartbeat, group: ShareGroup, assigned: Partitions | None) -> None:
        epoch, interval_ms = group.current_of(command.member_id).epoch, self._times(group.group_id)[1]
        response = share_responses.heartbeat(command.member_id, epoch, interval_ms, assigned)
        otherwise = share_responses.heartbeat_error(Refused(ErrorCode.NOT_COORDINATOR, ""))
        self._outbox.read_reply(command.token, response, otherwise)

    def _store(
        self,
        command: ShareHeartbeat,
        draft: ShareDraft,
        begins: dict[UUID, frozenset[int]],
        before: Partitions,
    ) -> None:
        """Write the draft and answer when it is replicated; then ask share coordinators."""
        group, image = draft.group, self._image
        current = group.current_of(command.member_id)
        # A member in an older epoch has missed the answer that told it what it is assigned.
        needs_all = command.subscribed_topic_names is not None or command.member_epoch != current.epoch
        assigned = current.assigned if needs_all or current.assigned != before else None
        # While something is being forgotten nothing begins, so there may be more to do than was done.
        is_complete = not self._states.is_forgetting(group.group_id)
        if not draft.records:
            if is_complete:
                self._checked[group.group_id] = image, group.states
            self._answer_read(command, group, assigned)
            return
        interval_ms = self._times(group.group_id).heartbeat_interval_ms
        answer = share_responses.heartbeat(command.member_id, current.epoch, interval_ms, assigned)

        def on_written(now_ms: int) -> None:
            # The group has the states of its records from here on, which are equal and not the same.
            if is_complete:
                self._checked[group.group_id] = image, self._durable.share_groups[group.group_id].states

        def on_appended(now_ms: int) -> None:
            self._outbox.reply(command.token, answer)
            if begins:
                self._ask_to_begin(group.group_id, group.epoch, begins)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            for topic_id in begins:
                self._asked.pop((group.group_id, topic_id), None)
            self._outbox.reply(command.token, _failed(error))

        self._outbox.append(
            draft.records, undo=_nothing, on_appended=on_appended, on_failed=on_failed, on_written=on_written
        )

    def _ask_to_begin(self, group_id: str, epoch: int, begins: dict[UUID, frozenset[int]]) -> None:
        offsets = {(topic_id, index): BY_SETTING for topic_id, indexes in begins.items() for index in indexes}

        def settled(results: object) -> None:
            for topic_id in begins:
                self._asked.pop((group_id, topic_id), None)

        self._states.initialize(group_id, epoch, offsets, settled, settled)

    def _times(self, group_id: str) -> ConsumerTimes:
        """What was set for this group, within the bounds of the broker."""
        return self._settings.share_times_of(self._image.group_configs.get(group_id, {}))

    def _keep_session(self, group_id: str, member_id: str, now_ms: int) -> None:
        timeout_ms = self._times(group_id).session_timeout_ms
        self._outbox.set_timer((SHARE_SESSION, group_id, member_id), now_ms + timeout_ms)

    def loaded(self, now_ms: int) -> None:
        """Every member has a whole session to show itself."""
        for group in self._durable.share_groups.values():
            for member_id in group.members:
                self._keep_session(group.group_id, member_id, now_ms)


def _nothing() -> None:
    """A step that changes nothing before its records are in the log needs no undo; its effects still wait."""


def _failed(error: ErrorCode) -> Response:
    return share_responses.heartbeat_error(Refused(coordinator_error(error), ""))


def _updated(member: ShareMemberMetadata | None, command: ShareHeartbeat) -> ShareMemberMetadata:
    """The member with what the heartbeat says of it."""
    before = ShareMemberMetadata(None, "", "", ()) if member is None else member
    names = command.subscribed_topic_names
    return ShareMemberMetadata(
        before.rack_id if command.rack_id is None else command.rack_id,
        command.client_id,
        command.client_host,
        before.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )

"""ConsumerGroupHeartbeat (KIP-848): members of consumer groups join, report, are assigned and leave.

A heartbeat does up to three things, each written before it is answered: it updates the member (and with it
the group's epoch), it computes a new target assignment if the group's epoch is ahead of it, and it moves the
member towards its target. A heartbeat that changes nothing writes nothing.

    ("consumer session", group, member)    the member was silent too long
    ("consumer rebalance", group, member)  the member did not give its partitions up in time
    ("consumer join", group, member)       a classic member did not rejoin in time
    ("consumer sync", group, member)       a classic member did not ask for its assignment in time

Every member always has its session timer armed. Either timer removes the member from the group.
"""

from collections.abc import Callable
from functools import partial

from tidelog.groups import consumer_responses
from tidelog.groups.classic_draft import TimerKey
from tidelog.groups.classic_group import ClassicGroup
from tidelog.groups.commands import UNCHANGED_MS, ConsumerHeartbeat
from tidelog.groups.consumer_draft import Draft
from tidelog.groups.consumer_group import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
)
from tidelog.groups.consumer_schemas import MemberMetadata, MemberState, Partitions
from tidelog.groups.durable import DurableGroups
from tidelog.groups.membership import Rebalances
from tidelog.groups.protocol_migration import Migration
from tidelog.groups.responses import Response
from tidelog.groups.settings import ConsumerTimes, GroupSettings
from tidelog.groups.states import GroupState
from tidelog.groups.topic_regex import Expressions, InvalidRegex, Resolved
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

SESSION = "consumer session"
REBALANCE = "consumer rebalance"
JOIN = "consumer join"
SYNC = "consumer sync"
_TIMERS = (SESSION, REBALANCE, JOIN, SYNC)
_NEW_MEMBER = MemberMetadata(None, None, "", "", (), None, UNCHANGED_MS, None)


def is_consumer_timer(kind: str) -> bool:
    return kind in _TIMERS


class ConsumerRequests:
    """Answers heartbeats and removes members; the groups change only as their records are applied."""

    __slots__ = (
        "_checked",
        "_durable",
        "_expressions",
        "_groups",
        "_image",
        "_is_limited",
        "_migration",
        "_outbox",
        "_rebalances",
        "_rights",
        "rejoining",
    )

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        durable: DurableGroups,
        outbox: Outbox,
        rebalances: Rebalances,
        expressions: Expressions,
    ) -> None:
        self._groups = groups
        self._expressions = expressions
        self._durable = durable
        self._outbox = outbox
        self._rebalances = rebalances
        self._migration = Migration(groups, outbox, rebalances)
        self._image = ClusterImage()
        self._checked: dict[str, ClusterImage] = {}
        """The metadata each group's subscriptions were last held against."""
        self._rights: dict[tuple[str, str], Callable[[str], bool]] = {}
        """Which topics members may know of, by group and member, as of their last heartbeats; an expression
        of several members matches what all of them may. Not durable: members are heard of soon, and until
        then their expressions match nothing that they did not match before."""
        self._is_limited: bool | None = None
        """Are there limits to what members may know of? The first heartbeat tells, and all others agree."""
        self.rejoining: dict[tuple[str, str], None] = {}
        """Classic members that have been told to rejoin; the first telling starts the clock."""

    @property
    def settings(self) -> GroupSettings:
        return self._rebalances.settings

    @property
    def image(self) -> ClusterImage:
        return self._image

    @image.setter
    def image(self, image: ClusterImage) -> None:
        self._image = image

    # ------------------------------------------------------------ the heartbeat

    def heartbeat(self, command: ConsumerHeartbeat, now_ms: int) -> None:
        if self._is_limited is not (command.may_describe is not None):
            self._is_limited = command.may_describe is not None
            self._checked.clear()
        refused: Refused | None = None
        if command.member_epoch < JOINING_EPOCH:
            refused = self._leave(command, now_ms)
        elif not self._beat_unchanged(command, now_ms):
            refused = self._beat(command, now_ms)
        if refused is not None:
            self._outbox.reply(
                command.token, consumer_responses.heartbeat_error(refused.code, refused.message)
            )

    def _regex_fault(self, expression: str | None) -> Refused | None:
        found = self._expressions.resolve(expression, self._image.topics) if expression else None
        if not isinstance(found, InvalidRegex):
            return None
        message = f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {found}."
        return Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, message)

    def _beat_unchanged(self, command: ConsumerHeartbeat, now_ms: int) -> bool:
        """The common case, without a draft: a settled member says that it is alive."""
        group = self._durable.consumer_groups.get(command.group_id)
        member = group.members.get(command.member_id) if group is not None else None
        if group is None or member is None or command.member_epoch == JOINING_EPOCH:
            return False
        current = group.current_of(command.member_id)
        if (
            command.member_epoch != current.epoch
            or group.epoch != group.assignment_epoch
            or not group.is_reconciled(command.member_id)
            or self._checked.get(command.group_id) is not self._image
            or self._rights.get((group.group_id, command.member_id)) != command.may_describe
            or command.instance_id not in (None, member.instance_id)
            or _updated(member, command) != member
        ):
            return False
        self.keep_session(group.group_id, command.member_id, member, now_ms)
        assigned = current.assigned if command.is_full else None
        self._answer_read(command, command.member_id, current.epoch, assigned)
        return True

    def _beat(self, command: ConsumerHeartbeat, now_ms: int) -> Refused | None:
        draft = self._open(command, now_ms)
        if isinstance(draft, Refused):
            return draft
        member_id = command.member_id or command.new_member_id
        if (
            len(draft.group.members) >= self.settings.consumer_max_size
            and member_id not in draft.group.members
        ):
            limit = self.settings.consumer_max_size
            message = f"The consumer group has reached its maximum capacity of {limit} members."
            return Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        refused = self._admit(draft, command, member_id) or self._regex_fault(command.subscribed_topic_regex)
        if refused is not None:
            return refused
        self._replace(draft, command, member_id)
        before = draft.group.current_of(member_id)
        self._note_rights(command, member_id)
        resubscribed = self.update_member(
            draft, member_id, _updated(draft.group.members.get(member_id, _NEW_MEMBER), command), now_ms
        )
        draft.reconcile(member_id, command.owned, resubscribed=resubscribed)
        after, member = draft.group.current_of(member_id), draft.group.members[member_id]
        self.keep_session(command.group_id, member_id, member, now_ms)
        if after != before and after.state is MemberState.UNREVOKED_PARTITIONS:
            self._outbox.set_timer(
                (REBALANCE, command.group_id, member_id), now_ms + member.rebalance_timeout_ms
            )
        elif after.state is not MemberState.UNREVOKED_PARTITIONS:
            self._outbox.cancel_timer((REBALANCE, command.group_id, member_id))
        # Who comes with the epoch before has not heard the last answer; the assignment may have been in it.
        unheard = command.is_full or command.member_epoch != before.epoch
        assigned = after.assigned if unheard or after.assigned != before.assigned else None
        if not draft.records:
            if draft.is_refreshed:
                self._checked[command.group_id] = self._image
            self._answer_read(command, member_id, after.epoch, assigned)
            return None
        interval_ms = self._own_ms(command.group_id).heartbeat_interval_ms
        answer = consumer_responses.heartbeat(member_id, after.epoch, interval_ms, assigned)
        self.store(draft, answer=(command.token, answer), failed=_failed)
        return None

    def _answer_read(
        self, command: ConsumerHeartbeat, member_id: str, epoch: int, assigned: Partitions | None
    ) -> None:
        """Nothing to write, but what is told must not be taken back by a failover."""
        interval_ms = self._own_ms(command.group_id).heartbeat_interval_ms
        answer = consumer_responses.heartbeat(member_id, epoch, interval_ms, assigned)
        self._outbox.read_reply(command.token, answer, _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _open(self, command: ConsumerHeartbeat, now_ms: int) -> Draft | Refused:
        """The group to join or report to; a classic one is converted where that can be."""
        group = self._durable.consumer_groups.get(command.group_id)
        if group is not None:
            return Draft(group)
        classic = self._groups.get(command.group_id)
        if command.member_epoch != JOINING_EPOCH:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {command.group_id} not found.")
        if classic is None:
            return Draft(ConsumerGroup(command.group_id))
        if classic.is_in(GroupState.DEAD):
            return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        draft = self._migration.upgraded(classic, self._image)
        if draft is None:
            message = f"Group {command.group_id} is not a consumer group."
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, message)
        for member_id, member in draft.group.members.items():
            self.keep_session(command.group_id, member_id, member, now_ms)
        return draft

    # ------------------------------------------------------------ who may come in

    def _admit(self, draft: Draft, command: ConsumerHeartbeat, member_id: str) -> Refused | None:
        group, instance_id = draft.group, command.instance_id
        joins = command.member_epoch == JOINING_EPOCH
        if instance_id is None:
            if member_id in group.members:
                return self._epoch_fault(group, member_id, command)
            if joins:
                return None
            message = f"Member {member_id} is not a member of group {group.group_id}."
            return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
        existing_id = group.static_members.get(instance_id)
        if existing_id is None:
            if joins:
                return None
            return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if existing_id == member_id:
            return self._epoch_fault(group, member_id, command)
        if not joins:
            message = f"Static member {member_id} with instance id {instance_id} was fenced by {existing_id}."
            return Refused(ErrorCode.FENCED_INSTANCE_ID, message)
        away = group.current_of(existing_id).epoch == STATIC_LEAVING_EPOCH
        if not away and group.members[existing_id].classic is None:
            message = f"Static member {member_id} cannot join: {existing_id} owns instance id {instance_id}."
            return Refused(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        return None

    def _replace(self, draft: Draft, command: ConsumerHeartbeat, member_id: str) -> None:
        """A static member that comes back under another id takes the place of the one that it was."""
        group = draft.group
        existing_id = group.static_members.get(command.instance_id) if command.instance_id else None
        if existing_id is not None and existing_id != member_id:
            draft.replace_member(existing_id, member_id)
            self.cancel_timers(group.group_id, existing_id)

    def _epoch_fault(
        self, group: ConsumerGroup, member_id: str, command: ConsumerHeartbeat
    ) -> Refused | None:
        """The member's epoch, or the one before if the answer with the new one may have been lost.

        Who joins again, perhaps a static member that left for a while and kept its id, is always let in.
        """
        current = group.current_of(member_id)
        if command.member_epoch == current.epoch or group.members[member_id].classic is not None:
            return None
        if command.member_epoch == JOINING_EPOCH:
            return None
        missed = command.member_epoch == current.previous_epoch and command.member_epoch < current.epoch
        if missed and command.owned is not None and command.owned <= current.assigned:
            return None
        message = (
            f"The member's epoch is {command.member_epoch}, the coordinator's {current.epoch}. "
            "The member must abandon all its partitions and rejoin."
        )
        return Refused(ErrorCode.FENCED_MEMBER_EPOCH, message)

    # ------------------------------------------------------------ what a member changes

    def _note_rights(self, command: ConsumerHeartbeat, member_id: str) -> None:
        """What counts is who sends the heartbeat, not who joined: a member id can come from elsewhere."""
        member = (command.group_id, member_id)
        if self._rights.get(member) != command.may_describe:
            # It may know of less, or of more, than the expressions of the group were taken for.
            self._checked.pop(command.group_id, None)
        if command.may_describe is None:
            self._rights.pop(member, None)
        else:
            self._rights[member] = command.may_describe

    def update_member(self, draft: Draft, member_id: str, updated: MemberMetadata, now_ms: int) -> bool:
        """Write the member, and with it a new epoch and target where subscriptions or topics changed.

        True if its subscription did.
        """
        group = draft.group
        member = group.members.get(member_id, _NEW_MEMBER)
        changed = updated.subscribed_topic_names != member.subscribed_topic_names or (
            (updated.subscribed_topic_regex or "") != (member.subscribed_topic_regex or "")
        )
        if updated != member:
            draft.put_member(member_id, updated)
        if changed or self._checked.get(group.group_id) is not self._image:
            self.refresh(draft, now_ms, changed=changed)
        if group.epoch > group.assignment_epoch:
            draft.compute_targets(self.settings.consumer_assignors[0])
        return changed

    def refresh(self, draft: Draft, now_ms: int, *, changed: bool) -> None:
        """Hold the subscriptions against the metadata; the epoch grows if either has `changed`.

        It counts as done once every expression was held against the topics of now; until then the next
        heartbeat tries again.
        """
        image = self._image
        draft.is_refreshed = True
        resolve = partial(self._resolve_for, draft)
        if draft.refresh_topics(image.topics, image.version, resolve, now_ms) or changed:
            draft.bump_epoch()
            fields = {
                "group": draft.group.group_id,
                "epoch": draft.group.epoch,
                "members": len(draft.group.members),
            }
            cause = "members or subscriptions changed" if changed else "topics changed"
            self._outbox.event("consumer group has a new epoch", fields, cause)

    def _resolve_for(self, draft: Draft, expression: str) -> tuple[str, ...]:
        """The topics of an expression that every member who has it may know of.

        After a failover, members are heard of one by one. Who was not heard of yet may know of what was
        written down with its rights: to match more, or less, would move partitions back and forth.
        """
        group = draft.group
        stored = group.regexes.get(expression)
        before = () if stored is None else stored.topics
        found = self._expressions.resolve(expression, self._image.topics)
        draft.is_refreshed = draft.is_refreshed and isinstance(found, Resolved) and found.is_current
        names = found.topics if isinstance(found, Resolved) else before
        if self._is_limited is False:
            return names
        topics_before = frozenset(before)
        for member_id, member in group.members.items():
            if member.subscribed_topic_regex == expression:
                may_describe = self._rights.get((group.group_id, member_id), topics_before.__contains__)
                names = tuple(filter(may_describe, names))
        return names

    # ------------------------------------------------------------ members go

    def _leave(self, command: ConsumerHeartbeat, now_ms: int) -> Refused | None:
        group = self._durable.consumer_groups.get(command.group_id)
        if group is None:
            return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {command.group_id} not found.")
        member_id = command.member_id
        if command.instance_id is not None:
            existing_id = group.static_members.get(command.instance_id)
            if existing_id is None:
                return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {command.instance_id} is unknown.")
            if existing_id != member_id:
                message = f"Static member {member_id} was fenced by {existing_id}."
                return Refused(ErrorCode.FENCED_INSTANCE_ID, message)
        elif member_id not in group.members:
            message = f"Member {member_id} is not a member of group {command.group_id}."
            return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
        answer = (command.token, consumer_responses.left(member_id, command.member_epoch))
        if command.member_epoch == LEAVING_EPOCH:
            self.remove(group, [member_id], now_ms, answer=answer)
            return None
        draft = Draft(group)
        draft.leave_for_a_while(member_id)
        self._outbox.cancel_timer((REBALANCE, command.group_id, member_id))
        self.store(draft, answer=answer, failed=_failed)
        return None

    def timer_fired(self, kind: str, group_id: str, member_id: str, now_ms: int) -> None:
        group = self._durable.consumer_groups.get(group_id)
        if group is None or member_id not in group.members:
            self._rights.pop((group_id, member_id), None)
            return
        state = group.current_of(member_id).state
        if kind == REBALANCE and state is not MemberState.UNREVOKED_PARTITIONS:
            return
        self.remove(group, [member_id], now_ms, retry_timer=(kind, group_id, member_id))

    def remove(
        self,
        group: ConsumerGroup,
        member_ids: list[str],
        now_ms: int,
        *,
        answer: tuple[int, Response] | None = None,
        failed: Callable[[ErrorCode], Response] | None = None,
        retry_timer: TimerKey | None = None,
    ) -> None:
        """Members are out: what they had is free, and the group's epoch grows. If only classic members are
        left, the group goes back to the classic protocol.
        """
        draft = Draft(group)
        for member_id in member_ids:
            draft.remove_member(member_id)
            self.cancel_timers(group.group_id, member_id)
        failed = failed or _failed
        if self._migration.may_downgrade(draft.group):
            for member_id in draft.group.members:
                self.cancel_timers(group.group_id, member_id)
            records, on_written = self._migration.downgraded(group, draft.group, self._image, now_ms)
            draft.records = records
            self.store(draft, answer=answer, failed=failed, retry_timer=retry_timer, on_written=on_written)
            return
        self.refresh(draft, now_ms, changed=True)
        self.store(draft, answer=answer, failed=failed, retry_timer=retry_timer)

    # ------------------------------------------------------------ storing, timers, loading

    def store(
        self,
        draft: Draft,
        *,
        answer: tuple[int, Response] | None,
        failed: Callable[[ErrorCode], Response],
        retry_timer: TimerKey | None = None,
        on_written: Callable[[int], None] | None = None,
        may_downgrade: bool = False,
    ) -> None:
        """Write the draft; timers of the step wait for that, the answer until it is replicated."""
        group_id, image, refused = draft.group.group_id, self._image, False

        def taken_back() -> None:
            nonlocal refused
            refused = True

        def written(now_ms: int) -> None:
            if group_id not in self._durable.consumer_groups:
                self._checked.pop(group_id, None)
            elif draft.is_refreshed:
                self._checked[group_id] = image
            if on_written is not None:
                on_written(now_ms)
            if may_downgrade and self._migration.may_downgrade(draft.group):
                self.remove(self._durable.consumer_groups[group_id], [], now_ms)

        def on_appended(now_ms: int) -> None:
            if answer is not None:
                self._outbox.reply(*answer)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            if answer is not None:
                self._outbox.reply(answer[0], failed(coordinator_error(error)))
            if refused and retry_timer is not None:
                self._outbox.set_timer(retry_timer, now_ms + self.settings.append_retry_ms)

        self._outbox.append(
            draft.records, undo=taken_back, on_appended=on_appended, on_failed=on_failed, on_written=written
        )

    def _own_ms(self, group_id: str) -> ConsumerTimes:
        """What was set for this group, else what holds for all."""
        configs = self._image.group_configs.get(group_id)
        return self.settings.consumer_times if configs is None else self.settings.times_of(configs)

    def keep_session(self, group_id: str, member_id: str, member: MemberMetadata, now_ms: int) -> None:
        timeout_ms = self._own_ms(group_id).session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._outbox.set_timer((SESSION, group_id, member_id), now_ms + timeout_ms)

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        self.rejoining.pop((group_id, member_id), None)
        self._rights.pop((group_id, member_id), None)
        for kind in _TIMERS:
            self._outbox.cancel_timer((kind, group_id, member_id))

    def loaded(self, now_ms: int) -> None:
        """Every member has a whole session to show itself, and as long as ever to give partitions up."""
        for group in self._durable.consumer_groups.values():
            for member_id, member in group.members.items():
                self.keep_session(group.group_id, member_id, member, now_ms)
                unrevoked = group.current_of(member_id).state is MemberState.UNREVOKED_PARTITIONS
                if unrevoked and member.classic is None:
                    timer = (REBALANCE, group.group_id, member_id)
                    self._outbox.set_timer(timer, now_ms + member.rebalance_timeout_ms)


def _failed(error: ErrorCode) -> Response:
    return consumer_responses.heartbeat_error(error, None)


def _updated(member: MemberMetadata, command: ConsumerHeartbeat) -> MemberMetadata:
    """The member with what the heartbeat says of it."""
    names = command.subscribed_topic_names
    regex = command.subscribed_topic_regex
    timeout_ms = command.rebalance_timeout_ms
    return MemberMetadata(
        command.instance_id if command.instance_id is not None else member.instance_id,
        command.rack_id if command.rack_id is not None else member.rack_id,
        command.client_id,
        command.client_host,
        member.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        member.subscribed_topic_regex if regex is None else regex,
        member.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms,
        command.server_assignor if command.server_assignor is not None else member.server_assignor,
    )

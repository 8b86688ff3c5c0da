"""OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups, and the expiry of offsets and groups.

Who may commit: a member of the current generation, or anyone while the group has no members (generation -1).
In consumer groups a member's epoch stands for the generation, and it must say it to fetch offsets as well; to
commit, the epoch may be an older one in which it owned the partitions already.
A commit also keeps the member's session. Offsets expire `offsets.retention.minutes` after the group became
empty, or after the last commit where the group has no members by design (simple groups) or does not read
the topic any more.
"""

from tidelog.groups import responses
from tidelog.groups.classic_draft import ClassicDraft, ClassicGroups
from tidelog.groups.classic_group import ClassicGroup
from tidelog.groups.commands import (
    NO_RETENTION,
    NO_TIMESTAMP,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    ForgetTopic,
    OffsetToCommit,
)
from tidelog.groups.consumer_draft import Draft
from tidelog.groups.consumer_group import ConsumerGroup
from tidelog.groups.durable import DurableGroups
from tidelog.groups.membership import Rebalances
from tidelog.groups.responses import Response
from tidelog.groups.schemas import (
    NO_EXPIRY,
    NO_STATE_TIMESTAMP,
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_key,
    offset_commit_value,
)
from tidelog.groups.states import GroupState
from tidelog.model.effects import RecordPair
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import DELAY_GROUP_PREFIX, NO_EPOCH
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

GROUP_ID_NOT_FOUND_SINCE_VERSION = 9
"""OffsetCommit of an unknown group: ILLEGAL_GENERATION before this version."""
MEMBER_EPOCH_SINCE_VERSION = 9
"""OffsetCommit by members of the consumer protocol: UNSUPPORTED_VERSION before this version."""


OffsetCommit = tuple[OffsetCommitKey, OffsetCommitValue]
"""What one record of a commit says."""


class OffsetRequests:
    """Answers for offsets; records go to the log first, and only `DurableGroups.apply` changes what is
    committed.
    """

    __slots__ = ("_durable", "_groups", "_outbox", "_rebalances")

    def __init__(
        self,
        groups: ClassicGroups,
        durable: DurableGroups,
        outbox: Outbox,
        rebalances: Rebalances,
    ) -> None:
        self._groups = groups
        self._durable = durable
        self._outbox = outbox
        self._rebalances = rebalances

    # ------------------------------------------------------------ OffsetCommit

    def commit(self, command: CommitOffsets, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        consumer_group = self._durable.consumer_groups.get(command.group_id)
        if consumer_group is not None:
            error = _consumer_commit_fault(consumer_group, command)
        else:
            error = self._commit_fault(group, command)
        if error is not ErrorCode.NONE:
            self._outbox.reply(command.token, commit_answer(command, error))
            return
        if (
            group is not None
            and not command.is_transactional
            and group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE)
        ):
            self._rebalances.keep_session(group, group.members[command.member_id], now_ms)
        expire_ms = NO_EXPIRY if command.retention_ms == NO_RETENTION else now_ms + command.retention_ms
        records: list[RecordPair] = []
        contents: list[OffsetCommit] = []
        by_topic: dict[str, list[Response]] = {}
        metadata_max_bytes = self._rebalances.settings.offset_metadata_max_bytes
        for offset in command.offsets:
            results = by_topic.setdefault(offset.topic, [])
            if offset.metadata and len(offset.metadata) > metadata_max_bytes:
                results.append(
                    responses.committed_partition(offset.partition, ErrorCode.OFFSET_METADATA_TOO_LARGE)
                )
                continue
            results.append(responses.committed_partition(offset.partition, ErrorCode.NONE))
            key = OffsetCommitKey(command.group_id, offset.topic, offset.partition)
            value = _value_to_store(offset, now_ms, expire_ms)
            records.append((offset_commit_key(*key), offset_commit_value(value)))
            contents.append((key, value))
        response: Response = {"topics": responses.topics(by_topic)}
        if not records:
            self._outbox.reply(command.token, response)
            return

        def on_appended(now_ms: int) -> None:
            self._outbox.reply(command.token, response)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            self._outbox.reply(command.token, commit_answer(command, coordinator_error(error)))

        self._outbox.append(
            records,
            on_appended=on_appended,
            on_failed=on_failed,
            producer_id=command.producer_id,
            producer_epoch=command.producer_epoch,
            contents=contents,
        )

    def _commit_fault(self, group: ClassicGroup | None, command: CommitOffsets) -> ErrorCode:
        if group is None:
            if command.generation < 0:
                return ErrorCode.NONE
            if command.api_version >= GROUP_ID_NOT_FOUND_SINCE_VERSION and not command.is_transactional:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if group.is_in(GroupState.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if command.generation < 0 and group.is_in(GroupState.EMPTY):
            return ErrorCode.NONE
        if command.generation < 0 and not command.member_id and command.group_instance_id is None:
            # Before KIP-447 a producer knew nothing of the group's members.
            return ErrorCode.NONE if command.is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = group.member_fault(command.member_id, command.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.is_in(GroupState.COMPLETING_REBALANCE) and not command.is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # ------------------------------------------------------------ OffsetFetch

    def fetch(self, command: FetchOffsets) -> None:
        """Offsets of known groups; an unknown group simply has none. Members of consumer groups say in which
        epoch they ask.
        """
        consumer_group = self._durable.consumer_groups.get(command.group_id)
        asks_as_member = bool(command.member_id) or command.member_epoch >= 0
        if consumer_group is not None and asks_as_member:
            error = consumer_group.epoch_fault(command.member_id or "", command.member_epoch)
            if error is not ErrorCode.NONE:
                self._outbox.reply(command.token, fetch_answer(command.group_id, error, ()))
                return
        by_topic: dict[str, list[Response]] = {}
        if command.topics is None:
            for topic, partition, _ in self._durable.offsets.of_group(command.group_id):
                by_topic.setdefault(topic, []).append(self._fetched(command, topic, partition))
        else:
            for topic, partitions in command.topics:
                results = by_topic.setdefault(topic, [])
                results.extend(self._fetched(command, topic, partition) for partition in partitions)
        response = fetch_answer(command.group_id, ErrorCode.NONE, responses.topics(by_topic))
        # Older consumers do not know COORDINATOR_NOT_AVAILABLE here, so the answer when a write is stuck
        # differs.
        otherwise = fetch_answer(command.group_id, ErrorCode.NOT_COORDINATOR, ())
        self._outbox.read_reply(command.token, response, otherwise)

    def _fetched(self, command: FetchOffsets, topic: str, partition: int) -> Response:
        offsets = self._durable.offsets
        if command.require_stable and offsets.is_pending(command.group_id, topic, partition):
            return responses.no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        value = offsets.get(command.group_id, topic, partition)
        if value is None:
            return responses.no_offset(partition)
        return responses.fetched_partition(partition, value.offset, value.leader_epoch, value.metadata)

    # ------------------------------------------------------------ OffsetDelete

    def delete_offsets(self, command: DeleteOffsets) -> None:
        classic = self._groups.get(command.group_id)
        group = self._durable.consumer_groups.get(command.group_id) or classic
        error = ErrorCode.NONE
        if group is None or (classic is not None and classic.is_in(GroupState.DEAD)):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif (
            classic is not None and not classic.is_in(GroupState.EMPTY) and not classic.uses_consumer_protocol
        ):
            error = ErrorCode.NON_EMPTY_GROUP
        if group is None or error is not ErrorCode.NONE:
            self._outbox.reply(command.token, {"error_code": error, "topics": ()})
            return
        records: list[RecordPair] = []
        by_topic: dict[str, list[Response]] = {}
        for topic, partitions in command.topics:
            results = by_topic.setdefault(topic, [])
            subscribed = group.is_subscribed_to(topic)
            outcome = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            for partition in partitions:
                results.append(responses.committed_partition(partition, outcome))
                if not subscribed and self._has_offset(command.group_id, topic, partition):
                    records.append((offset_commit_key(command.group_id, topic, partition), None))
        response: Response = {"error_code": ErrorCode.NONE, "topics": responses.topics(by_topic)}
        if not records:
            self._outbox.reply(command.token, response)
            return

        def on_appended(now_ms: int) -> None:
            self._outbox.reply(command.token, response)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            self._outbox.reply(command.token, {"error_code": coordinator_error(error), "topics": ()})

        self._outbox.append(records, on_appended=on_appended, on_failed=on_failed)

    def _has_offset(self, group_id: str, topic: str, partition: int) -> bool:
        offsets = self._durable.offsets
        return offsets.get(group_id, topic, partition) is not None or offsets.is_pending(
            group_id, topic, partition
        )

    # ------------------------------------------------------------ DeleteGroups

    def delete_group(self, command: DeleteGroup, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        consumer_group = self._durable.consumer_groups.get(command.group_id)
        error = ErrorCode.NONE
        if consumer_group is not None:
            error = ErrorCode.NON_EMPTY_GROUP if consumer_group.members else ErrorCode.NONE
        elif group is None or group.is_in(GroupState.DEAD):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif not group.is_in(GroupState.EMPTY):
            error = ErrorCode.NON_EMPTY_GROUP
        if error is not ErrorCode.NONE:
            self._outbox.reply(command.token, _delete_answer(command, error))
            return
        records = self._all_offset_tombstones(command.group_id)

        def on_appended(now_ms: int) -> None:
            self._outbox.reply(command.token, _delete_answer(command, ErrorCode.NONE))

        def on_failed(error: ErrorCode, now_ms: int, is_taken_back: bool = False) -> None:
            self._outbox.reply(command.token, _delete_answer(command, coordinator_error(error)))

        if group is not None:
            draft = self._buried(group, records, now_ms)
            self._groups.commit(draft, self._outbox, on_appended=on_appended, on_failed=on_failed)
        elif consumer_group is not None:
            records += _tombstones(consumer_group)
            self._outbox.append(records, on_appended=on_appended, on_failed=on_failed)

    def _all_offset_tombstones(self, group_id: str) -> list[RecordPair]:
        offsets = self._durable.offsets
        partitions = {(topic, partition): None for topic, partition, _ in offsets.of_group(group_id)}
        partitions.update(dict.fromkeys(offsets.pending_of_group(group_id)))
        return [(offset_commit_key(group_id, topic, partition), None) for topic, partition in partitions]

    def _buried(self, group: ClassicGroup, records: list[RecordPair], now_ms: int) -> ClassicDraft:
        """The end of a group, with its last records."""
        draft = ClassicDraft(group, "deleted, or its last offset expired")
        draft.records += records
        for member_id in group.pending_join_members:
            self._rebalances.forget_pending(draft, member_id)
        draft.bury(now_ms)
        return draft

    # ------------------------------------------------------------ expiry and deleted topics

    def expire(self, now_ms: int) -> None:
        """One append per group, so that one group's records are one batch and no batch grows with their
        number.
        """
        for consumer_group in list(self._durable.consumer_groups.values()):
            records, nothing_left = self._expired(consumer_group, now_ms)
            if nothing_left and not consumer_group.members:
                records += _tombstones(consumer_group)
            if records:
                self._outbox.append(records)
        for group in list(self._groups.values()):
            records, nothing_left = self._expired(group, now_ms)
            if nothing_left and group.is_in(GroupState.EMPTY) and not group.pending_join_members:
                self._groups.commit(self._buried(group, records, now_ms), self._outbox)
            elif records:
                self._outbox.append(records)

    def _expired(self, group: ClassicGroup | ConsumerGroup, now_ms: int) -> tuple[list[RecordPair], bool]:
        records: list[RecordPair] = []
        offsets = self._durable.offsets
        nothing_left = not offsets.has_open_transactions(group.group_id)
        retention_ms = self._rebalances.settings.offsets_retention_ms
        may_expire = isinstance(group, ConsumerGroup) or _may_expire(group)
        # What a delay topic has forwarded is known nowhere else, and it may have to wait for long.
        may_expire = may_expire and not group.group_id.startswith(DELAY_GROUP_PREFIX)
        for topic, partition, value in offsets.of_group(group.group_id):
            if (
                may_expire
                and not group.is_subscribed_to(topic)
                and not offsets.is_pending(group.group_id, topic, partition)
                and _is_expired(group, value, now_ms, retention_ms)
            ):
                records.append((offset_commit_key(group.group_id, topic, partition), None))
            else:
                nothing_left = False
        return records, nothing_left

    def forget_topic(self, command: ForgetTopic) -> None:
        offsets = self._durable.offsets
        for group_id in [*self._groups, *self._durable.consumer_groups]:
            partitions = {
                partition: None
                for topic, partition, _ in offsets.of_group(group_id)
                if topic == command.topic
            }
            for topic, partition in offsets.pending_of_group(group_id):
                if topic == command.topic:
                    partitions[partition] = None
            if partitions:
                self._outbox.append(
                    [
                        (offset_commit_key(group_id, command.topic, partition), None)
                        for partition in partitions
                    ]
                )


def _tombstones(group: ConsumerGroup) -> list[RecordPair]:
    draft = Draft(group)
    draft.bury()
    return draft.records


def _consumer_commit_fault(group: ConsumerGroup, command: CommitOffsets) -> ErrorCode:
    """A member of the consumer protocol commits in an epoch of its own and in a version that knows epochs."""
    if command.generation < 0 and (not group.members or (command.is_transactional and not command.member_id)):
        return ErrorCode.NONE
    partitions = ((offset.topic, offset.partition) for offset in command.offsets)
    error = group.commit_fault(command.member_id, command.generation, partitions)
    member = group.members.get(command.member_id)
    too_old = command.api_version < MEMBER_EPOCH_SINCE_VERSION and not command.is_transactional
    if member is not None and member.classic is None and too_old:
        return ErrorCode.UNSUPPORTED_VERSION
    return error


def _may_expire(group: ClassicGroup) -> bool:
    if group.protocol_type is None or group.is_in(GroupState.EMPTY):
        return not group.is_in(GroupState.DEAD)
    return group.uses_consumer_protocol and group.subscribed is not None and group.is_in(GroupState.STABLE)


def _is_expired(
    group: ClassicGroup | ConsumerGroup, value: OffsetCommitValue, now_ms: int, retention_ms: int
) -> bool:
    if value.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= value.expire_timestamp_ms
    since_ms = value.commit_timestamp_ms
    if isinstance(group, ConsumerGroup):
        return now_ms - since_ms >= retention_ms
    if group.protocol_type is not None and group.is_in(GroupState.EMPTY):
        since_ms = since_ms if group.state_timestamp_ms == NO_STATE_TIMESTAMP else group.state_timestamp_ms
    return now_ms - since_ms >= retention_ms


def _value_to_store(offset: OffsetToCommit, now_ms: int, expire_timestamp_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset.offset,
        offset.leader_epoch if expire_timestamp_ms == NO_EXPIRY else NO_EPOCH,
        offset.metadata or "",
        now_ms if offset.commit_timestamp_ms == NO_TIMESTAMP else offset.commit_timestamp_ms,
        expire_timestamp_ms,
    )


def commit_answer(command: CommitOffsets, error: ErrorCode) -> Response:
    by_topic: dict[str, list[Response]] = {}
    for offset in command.offsets:
        by_topic.setdefault(offset.topic, []).append(responses.committed_partition(offset.partition, error))
    return {"topics": responses.topics(by_topic)}


def fetch_answer(group_id: str, error: ErrorCode, topics: tuple[Response, ...]) -> Response:
    return {"group_id": group_id, "error_code": error, "topics": topics}


def _delete_answer(command: DeleteGroup, error: ErrorCode) -> Response:
    return {"group_id": command.group_id, "error_code": error}

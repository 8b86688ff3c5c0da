"""From classic to consumer group and back without stopping (KIP-848, `group.consumer.migration.policy`).

Upgrade: the first ConsumerGroupHeartbeat to a classic group of consumers turns it into a consumer group; its
members stay, as classic members of it. An empty classic group is simply replaced.
Downgrade: when the last member of the consumer protocol goes and classic ones are left, they form a classic
group again, which rebalances.

Either way the old group's tombstones and the new group's records are one append.
"""

from collections.abc import Callable, Iterable
from uuid import UUID

from tidelog.groups import responses
from tidelog.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member
from tidelog.groups.consumer_draft import Draft
from tidelog.groups.consumer_group import ConsumerGroup
from tidelog.groups.consumer_protocol import (
    NamedPartitions,
    Subscription,
    assignment,
    read_assignment,
    read_subscription,
)
from tidelog.groups.consumer_schemas import (
    ClassicMetadata,
    CurrentAssignment,
    Partitions,
    by_topic,
)
from tidelog.groups.consumer_schemas import MemberMetadata as ConsumerMemberMetadata
from tidelog.groups.membership import Rebalances, join_timer, session_timer, sync_timer
from tidelog.groups.schemas import (
    GroupMetadataValue,
    MemberMetadata,
    group_metadata_key,
    group_metadata_value,
)
from tidelog.groups.states import GroupState
from tidelog.model.effects import RecordPair
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox
from tidelog.records.stored_fields import UnreadableRecord


def partitions_by_id(named: NamedPartitions, image: ClusterImage) -> Partitions:
    """Partitions of topics that exist, by topic id."""
    return frozenset(
        (image.topics[name].topic_id, index)
        for name, indexes in named
        if name in image.topics
        for index in indexes
    )


def assignment_bytes(partitions: Partitions, subscription: bytes, image: ClusterImage) -> bytes:
    """What a classic member is told, in the version it speaks."""
    return assignment(read_subscription(subscription).version, _named(by_topic(partitions), image))


def _named(
    partitions: Iterable[tuple[UUID, list[int]]], image: ClusterImage
) -> Iterable[tuple[str, Iterable[int]]]:
    for topic_id, indexes in partitions:
        name = image.topic_names_by_id.get(topic_id)
        if name is not None:
            yield name, indexes


class Migration:
    """Converts groups; what it returns or emits takes effect when the records are written."""

    __slots__ = ("_groups", "_outbox", "_rebalances")

    def __init__(self, groups: dict[str, ClassicGroup], outbox: Outbox, rebalances: Rebalances) -> None:
        self._groups = groups
        self._outbox = outbox
        self._rebalances = rebalances

    # ------------------------------------------------------------ classic to consumer

    def upgraded(self, classic: ClassicGroup, image: ClusterImage) -> Draft | None:
        """A draft of the consumer group that takes the classic one's place; None where that cannot be."""
        draft = Draft(ConsumerGroup(classic.group_id))
        draft.records.append((group_metadata_key(classic.group_id), None))
        if not classic.is_in(GroupState.EMPTY):
            settings = self._rebalances.settings
            allowed = settings.allows_upgrade and len(classic.members) <= settings.consumer_max_size
            if not allowed or not classic.uses_consumer_protocol:
                return None
            try:
                self._take_members_over(draft, classic, image)
            except UnreadableRecord:
                return None
        self._dismiss(classic)
        return draft

    def _take_members_over(self, draft: Draft, classic: ClassicGroup, image: ClusterImage) -> None:
        generation = classic.generation
        members = list(classic.members.values())
        owned = {m.member_id: partitions_by_id(read_assignment(m.assignment), image) for m in members}
        for member in members:
            draft.put_member(member.member_id, _as_classic_member(classic, member))
        draft.set_epoch(generation)
        for member in members:
            draft.put_target(member.member_id, owned[member.member_id])
        draft.set_assignment_epoch(generation)
        for member in members:
            current = CurrentAssignment(generation, generation, assigned=owned[member.member_id])
            draft.put_current(member.member_id, current)

    def _dismiss(self, classic: ClassicGroup) -> None:
        """Whoever waits in the classic group joins again; its timers are over."""
        for member in classic.members.values():
            if member.awaiting_join is not None:
                error = responses.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
                self._outbox.reply(member.awaiting_join, error)
            if member.awaiting_sync is not None:
                self._outbox.reply(
                    member.awaiting_sync, responses.sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
                )
        for member_id in [*classic.members, *classic.pending_join_members]:
            self._outbox.cancel_timer(session_timer(classic.group_id, member_id))
        self._outbox.cancel_timer(join_timer(classic.group_id))
        self._outbox.cancel_timer(sync_timer(classic.group_id))

    # ------------------------------------------------------------ consumer to classic

    def may_downgrade(self, remaining: ConsumerGroup) -> bool:
        settings = self._rebalances.settings
        count = len(remaining.members)
        only_classic = 0 < count == remaining.classic_count
        return only_classic and settings.allows_downgrade and count <= settings.group_max_size

    def downgraded(
        self, group: ConsumerGroup, remaining: ConsumerGroup, image: ClusterImage, now_ms: int
    ) -> tuple[list[RecordPair], Callable[[int], None]]:
        """The records that make `group` a classic group of the `remaining` members, and what to do when
        they are written.
        """
        protocol = _common_protocol(remaining)
        members = tuple(
            _as_stored_member(remaining, member_id, protocol, image) for member_id in remaining.members
        )
        leader = members[0].member_id
        value = GroupMetadataValue(CONSUMER_PROTOCOL_TYPE, group.epoch, protocol, leader, now_ms, members)
        # The metadata comes first: as the last tombstone is applied, the classic group is found in it.
        record = (group_metadata_key(group.group_id), group_metadata_value(value))
        tombstones = Draft(group)
        tombstones.bury()

        def on_written(now_ms: int) -> None:
            classic = self._groups[group.group_id]
            for member in classic.members.values():
                self._rebalances.keep_session(classic, member, now_ms)
            cause = "the last member of the consumer protocol is gone"
            self._rebalances.rebalance(classic, cause, now_ms)

        return [record, *tombstones.records], on_written


def _as_classic_member(classic: ClassicGroup, member: Member) -> ConsumerMemberMetadata:
    subscription: Subscription = read_subscription(
        member.metadata(classic.protocol_name or member.protocols[0][0])
    )
    return ConsumerMemberMetadata(
        member.group_instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMetadata(member.session_timeout_ms, member.protocols),
    )


def _common_protocol(group: ConsumerGroup) -> str:
    """The first member's most preferred protocol that all speak; joining members were held to have one."""
    spoken = [dict(m.classic.protocols) for m in group.members.values() if m.classic is not None]
    return next(name for name in spoken[0] if all(name in protocols for protocols in spoken))


def _as_stored_member(
    group: ConsumerGroup, member_id: str, protocol: str, image: ClusterImage
) -> MemberMetadata:
    member = group.members[member_id]
    assert member.classic is not None
    subscription = dict(member.classic.protocols)[protocol]
    return MemberMetadata(
        member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        subscription,
        assignment_bytes(group.current_of(member_id).assigned, subscription, image),
    )

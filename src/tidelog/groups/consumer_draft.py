"""A step of a consumer group on paper: a copy of the group, and the records that make the group become it.

Every change goes through a record that is applied to the copy at once, so what a step decides on is exactly
what a replay will see. Nothing of the group itself changes before the records are in the log.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

from tidelog.groups.assignors import ASSIGNORS, Subscriber
from tidelog.groups.consumer_group import STATIC_LEAVING_EPOCH, ConsumerGroup
from tidelog.groups.consumer_schemas import (
    ConsumerKey,
    ConsumerRecordType,
    ConsumerValue,
    CurrentAssignment,
    MemberMetadata,
    Partitions,
    ResolvedRegex,
    TopicMetadata,
    consumer_key,
    current_assignment_value,
    epoch_value,
    member_metadata_value,
    partition_metadata_value,
    regular_expression_value,
    target_assignment_value,
)
from tidelog.groups.reconciliation import reconciled
from tidelog.model.effects import RecordPair
from tidelog.model.image import TopicImage

Resolve = Callable[[str], tuple[str, ...]]
"""The topics that an expression stands for now."""


class Draft:
    """The next state of a group, and the records on the way there."""

    __slots__ = ("group", "is_refreshed", "records")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group.copy()
        self.records: list[RecordPair] = []
        self.is_refreshed = False
        """Were the subscriptions held against the metadata in this step?"""

    # ------------------------------------------------------------ single records

    def _put(
        self,
        record_type: ConsumerRecordType,
        subject: str | None,
        value: ConsumerValue | None,
        encoded: bytes | None,
    ) -> None:
        group_id = self.group.group_id
        self.records.append((consumer_key(record_type, group_id, subject), encoded))
        self.group.apply(ConsumerKey(record_type, group_id, subject or ""), value)

    def bump_epoch(self) -> None:
        self.set_epoch(self.group.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self._put(ConsumerRecordType.GROUP_METADATA, None, epoch, epoch_value(epoch))

    def set_assignment_epoch(self, epoch: int) -> None:
        self._put(ConsumerRecordType.TARGET_ASSIGNMENT_METADATA, None, epoch, epoch_value(epoch))

    def put_topics(self, topics: dict[str, TopicMetadata]) -> None:
        self._put(ConsumerRecordType.PARTITION_METADATA, None, topics, partition_metadata_value(topics))

    def put_member(self, member_id: str, member: MemberMetadata) -> None:
        self._put(ConsumerRecordType.MEMBER_METADATA, member_id, member, member_metadata_value(member))

    def put_target(self, member_id: str, target: Partitions) -> None:
        encoded = target_assignment_value(target)
        self._put(ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER, member_id, target, encoded)

    def put_current(self, member_id: str, current: CurrentAssignment) -> None:
        encoded = current_assignment_value(current)
        self._put(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, member_id, current, encoded)

    def put_regex(self, expression: str, resolved: ResolvedRegex | None) -> None:
        encoded = None if resolved is None else regular_expression_value(resolved)
        self._put(ConsumerRecordType.REGULAR_EXPRESSION, expression, resolved, encoded)

    # ------------------------------------------------------------ members

    def remove_member(self, member_id: str) -> None:
        """Tombstones for all that is known of a member; its partitions are free from here."""
        for record_type in (
            ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT,
            ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER,
            ConsumerRecordType.MEMBER_METADATA,
        ):
            self._put(record_type, member_id, None, None)

    def replace_member(self, old_id: str, new_id: str) -> None:
        """A static member came back under another id: what it had is its successor's."""
        group = self.group
        member, target, current = group.members[old_id], group.target_of(old_id), group.current_of(old_id)
        self.remove_member(old_id)
        self.put_member(new_id, member)
        self.put_target(new_id, target)
        self.put_current(new_id, current._replace(epoch=0, previous_epoch=0))

    def leave_for_a_while(self, member_id: str) -> None:
        """A static member stops to come back: it keeps what it has, and has given up what it was to."""
        assigned = self.group.current_of(member_id).assigned
        self.put_current(member_id, CurrentAssignment(epoch=STATIC_LEAVING_EPOCH, assigned=assigned))

    def bury(self) -> None:
        """Tombstones for the whole group."""
        for member_id in list(self.group.members):
            self.remove_member(member_id)
        for expression in list(self.group.regexes):
            self.put_regex(expression, None)
        for record_type in (
            ConsumerRecordType.TARGET_ASSIGNMENT_METADATA,
            ConsumerRecordType.PARTITION_METADATA,
            ConsumerRecordType.GROUP_METADATA,
        ):
            self._put(record_type, None, None, None)

    # ------------------------------------------------------------ subscriptions and targets

    def refresh_topics(
        self, topics: Mapping[str, TopicImage], metadata_version: int, resolve: Resolve, now_ms: int
    ) -> bool:
        """Bring expressions and topics up to date; True if the topics a member reads have changed."""
        group = self.group
        wanted = dict.fromkeys(
            member.subscribed_topic_regex
            for member in group.members.values()
            if member.subscribed_topic_regex
        )
        matches_changed = False
        for expression in wanted:
            assert expression is not None
            names, known = resolve(expression), group.regexes.get(expression)
            if known is None or known.topics != names:
                matches_changed = matches_changed or known is not None
                self.put_regex(expression, ResolvedRegex(names, metadata_version, now_ms))
        for expression in [known for known in group.regexes if known not in wanted]:
            self.put_regex(expression, None)
        existing = {
            name: TopicMetadata(topics[name].topic_id, len(topics[name].partitions))
            for name in group.subscribed(topics)
        }
        if existing != group.topics:
            self.put_topics(existing)
            return True
        return matches_changed

    def compute_targets(self, default_assignor: str) -> None:
        """A new target assignment for the group's epoch; only what changed is written."""
        group = self.group
        members = {
            member_id: Subscriber(
                member.instance_id,
                self._topic_ids(member),
                group.target_of(member_id),
            )
            for member_id, member in group.members.items()
        }
        counts = {topic.topic_id: topic.partition_count for topic in group.topics.values()}
        assign = ASSIGNORS[group.preferred_assignor(default_assignor)]
        for member_id, target in assign(members, counts).items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.put_target(member_id, target)
        self.set_assignment_epoch(group.epoch)

    def _topic_ids(self, member: MemberMetadata) -> frozenset[UUID]:
        """Those of the topics that a member reads and that there are."""
        topics = self.group.topics
        names = filter(topics.__contains__, self.group.topics_of(member))
        return frozenset(topics[name].topic_id for name in names)

    def reconcile(self, member_id: str, owned: Partitions | None, *, resubscribed: bool) -> None:
        """Bring a member nearer to its target; `resubscribed`: it has just asked for other topics."""
        group, current = self.group, self.group.current_of(member_id)
        if group.is_reconciled(member_id):
            return
        following = reconciled(
            member_id,
            current,
            group.target_of(member_id),
            group.assignment_epoch,
            group.owners,
            owned,
            self._topic_ids(group.members[member_id]) if resubscribed else None,
        )
        if following != current:
            self.put_current(member_id, following)

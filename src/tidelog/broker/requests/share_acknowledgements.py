"""What members of share groups say of their records, in ShareFetch and in ShareAcknowledge.

Each partition of a request is refused or stored on its own, and all of them are answered together.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.groups.commands import SHARE_MEMBER_ID_CHARACTERS_MAX
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.protocol.slices import each
from tidelog.shares import acknowledging
from tidelog.shares.commands import AcknowledgementBatch
from tidelog.shares.schemas import ShareKey

if TYPE_CHECKING:
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.requests.authorization import Authorization

Place = tuple[UUID, int]
Results = dict[Place, Refused | None]
Asked = list[tuple[Place, tuple[AcknowledgementBatch, ...]]]


_NO_TOPIC = UUID(int=0)


class Member(NamedTuple):
    """Who asks, in which group."""

    context: ConnectionContext
    group_id: str
    member_id: str


def may_be_member(member_id: str | None) -> bool:
    """Whether that can be the id of a member: the client makes it up."""
    return member_id is not None and 0 < len(member_id) <= SHARE_MEMBER_ID_CHARACTERS_MAX


def topic_of(topic: Any) -> UUID:
    """The id of a topic of a request, which may be none that a topic has."""
    topic_id: UUID = topic.topic_id or _NO_TOPIC
    return topic_id


def asked_of(topics: Iterable[Any]) -> Asked:
    """What a request says of which partitions; those of which it says nothing are left out."""
    return [
        (
            (topic_of(topic), part.partition_index),
            tuple(
                AcknowledgementBatch(batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))
                for batch in part.acknowledgement_batches
            ),
        )
        for topic in each(topics)
        for part in each(topic.partitions)
        if part.acknowledgement_batches
    ]


class Acknowledgements:
    """Has acknowledgements stored."""

    __slots__ = ("_authorization", "_metadata", "_replicas", "_shares")

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        authorization: "Authorization | None",
        shares: "Sharing",
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._authorization = authorization
        self._shares = shares

    def refusal(self, member: Member, place: Place) -> Refused | None:
        """Why the member cannot have to do with a partition, wherever it is led."""
        image = self._metadata.image
        name = image.topic_names_by_id.get(place[0])
        if name is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        authorization = self._authorization
        if authorization is not None and not authorization.allows(
            member.context, AclOperation.READ, ResourceType.TOPIC, name
        ):
            return Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        if not 0 <= place[1] < len(image.topics[name].partitions):
            message = "This server does not host this topic-partition."
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return None

    def store(self, member: Member, asked: Asked, *, is_renew: bool, then: Callable[[Results], None]) -> None:
        """`then` once each partition's part is stored or refused, perhaps at once."""
        results: Results = {}
        waiting = {place for place, _ in asked}

        def put(place: Place, refused: Refused | None) -> None:
            results[place] = refused
            waiting.discard(place)
            if not waiting:
                then(results)

        if not asked:
            then(results)
            return
        parts: dict[Place, list[AcknowledgementBatch]] = {}
        for place, batches in asked:
            parts.setdefault(place, []).extend(batches)
        for place, said in parts.items():
            self._store_part(member, place, tuple(said), is_renew, partial(put, place))

    def _store_part(
        self,
        member: Member,
        place: Place,
        batches: tuple[AcknowledgementBatch, ...],
        is_renew: bool,
        then: Callable[[Refused | None], None],
    ) -> None:
        refused = self.refusal(member, place) or acknowledging.malformed(batches, is_renew=is_renew)
        if refused is None:
            partition, error = self._replicas.find(*place)
            if partition is None:
                refused = Refused(error, error.name)
        if refused is not None:
            then(refused)
            return
        shared = self._shares.partitions.find(ShareKey(member.group_id, *place))
        if shared is None:
            # Nobody has acquired anything from it since this broker leads it.
            then(Refused(ErrorCode.INVALID_RECORD_STATE, "The records are not acquired."))
            return
        self._shares.partitions.acknowledge(shared, member.member_id, batches, then)

"""What all guards are made of: who asks, answers that are changed on their way, refusals."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tidelog.broker.requests.authorization import Authorization
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.protocol.slices import each
from tidelog.security.acl import IMPLY_DESCRIBE

Fields = Mapping[str, Any]
Answer = Fields | DelayedAnswer
Serve = Callable[[Request], Answer]
T = TypeVar("T")

TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Access:
    """What the sender of one request may do."""

    __slots__ = ("_authorization", "_context", "image", "settings")

    def __init__(
        self, authorization: Authorization, request: Request, image: ClusterImage, settings: LiveSettings
    ) -> None:
        self._authorization = authorization
        self._context = request.context
        self.image = image
        self.settings = settings

    def may(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        return self._authorization.allows(self._context, operation, kind, name)

    def may_cluster(self, operation: AclOperation) -> bool:
        return self._authorization.allows(self._context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_topic(self, operation: AclOperation, name: str) -> bool:
        return self._authorization.allows(self._context, operation, ResourceType.TOPIC, name)

    def may_describe(self, name: str) -> bool:
        """Whether a topic may be known; nobody asked for it by name, so a denial is not logged."""
        context = self._context
        return self._authorization.describes_topic(context.principal, context.host, name)

    def may_group(self, operation: AclOperation, group_id: str) -> bool:
        return self._authorization.allows(self._context, operation, ResourceType.GROUP, group_id)

    def may_transaction(self, operation: AclOperation, transactional_id: str) -> bool:
        kind = ResourceType.TRANSACTIONAL_ID
        return self._authorization.allows(self._context, operation, kind, transactional_id)

    def may_any_topic(self, operation: AclOperation) -> bool:
        return self._authorization.allows_any(self._context, operation, ResourceType.TOPIC)

    def may_describe_any_transaction(self) -> bool:
        """Whether there may be a transactional id with DESCRIBE, which other operations imply."""
        kind = ResourceType.TRANSACTIONAL_ID
        return any(self._authorization.allows_any(self._context, one, kind) for one in IMPLY_DESCRIBE)

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that are allowed, one bit for each."""
        return self._authorization.operations(self._context, kind, name)

    def cluster_operations(self) -> int:
        """The operations on the cluster; none of them is told to who may not describe it."""
        if not self.may_cluster(AclOperation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)


Guard = Callable[[Access, Request, Serve], Answer]


class _Changed(DelayedAnswer):
    """A later answer that is changed on its way."""

    __slots__ = ("_source",)

    def __init__(self, source: DelayedAnswer, change: Callable[[Fields], Fields]) -> None:
        super().__init__()
        self._source = source
        source.deliver_to(lambda fields: self.answer(change(fields)))

    def abandon(self) -> None:
        super().abandon()
        self._source.abandon()


def changed(answer: Answer, change: Callable[[Fields], Fields]) -> Answer:
    """The answer, now or later, after a change."""
    return _Changed(answer, change) if isinstance(answer, DelayedAnswer) else change(answer)


def parted(items: Iterable[T], allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The items that are allowed, and the others."""
    kept: list[T] = []
    refused: list[T] = []
    for item in each(items):
        (kept if allowed(item) else refused).append(item)
    return kept, refused


def with_body(request: Request, **fields: Any) -> Request:
    """The request with other values in some fields."""
    return replace(request, body=replace(request.body, **fields))


def with_rows(answer: Answer, field: str, rows: list[Fields]) -> Answer:
    """The answer with more rows in one of its lists."""
    if not rows:
        return answer
    return changed(answer, lambda fields: {**fields, field: [*(fields.get(field) or ()), *rows]})


def serve_allowed(
    request: Request,
    serve: Serve,
    asked: str,
    kept: list[Any],
    answered: str,
    refusals: list[Fields],
) -> Answer:
    """Have the allowed items of a list served, and refuse the others; nothing is served if none is left."""
    if not refusals:
        return serve(request)
    if not kept:
        return {answered: refusals}
    return with_rows(serve(with_body(request, **{asked: tuple(kept)})), answered, refusals)


def partition_rows(indexes: Iterable[int], error: ErrorCode, **fields: Any) -> list[Fields]:
    """One refusal for each partition."""
    return [{"partition_index": index, "error_code": error, **fields} for index in each(indexes)]

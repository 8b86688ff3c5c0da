"""`controller_mutation_rate`: how many partitions a client may create and delete (KIP-599).

Versions that know THROTTLING_QUOTA_EXCEEDED get it for each topic that comes when no token is left, and
nothing is done to it; older ones are served and made to wait. One topic may take more tokens than there are.
"""

from collections.abc import Callable
from typing import Any

from tidelog.broker.requests.guards.guard import Fields, serve_allowed
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.security.quotas import TokenBucket

#: the version from which on a topic above the limit is refused
STRICT_SINCE = {"CreateTopics": 6, "CreatePartitions": 3, "DeleteTopics": 5}
_ANSWERED = {"CreateTopics": "topics", "CreatePartitions": "results", "DeleteTopics": "responses"}
_FIRST_DELETE_BY_ID = 6


def serve_mutation(
    bucket: TokenBucket,
    limit: float,
    call: Callable[[Request], Any],
    request: Request,
    image: ClusterImage,
    default_partitions: int,
    now_ms: int,
) -> tuple[Any, int]:
    """Serve a request as far as there are tokens; its answer, and how long to wait."""
    name = request.api.name
    strict_since = STRICT_SINCE.get(name)
    if strict_since is None:
        return call(request), 0
    asked = "topic_names" if name == "DeleteTopics" and request.version < _FIRST_DELETE_BY_ID else "topics"
    kept: list[Any] = []
    rows: list[Fields] = []
    for item in getattr(request.body, asked):
        if request.version >= strict_since and bucket.throttle_ms(limit, now_ms):
            rows.append(_refusal(item))
            continue
        bucket.take(_partitions(image, default_partitions, name, item), limit, now_ms)
        kept.append(item)
    answer = serve_allowed(request, call, asked, kept, _ANSWERED[name], rows)
    # Who was served, and is strictly limited, waits when the next one is refused.
    waits = bool(rows) or request.version < strict_since
    return answer, bucket.throttle_ms(limit, now_ms) if waits else 0


def _partitions(image: ClusterImage, default: int, api: str, item: Any) -> int:
    """How many partitions would come or go."""
    topics = image.topics
    if api == "CreateTopics":
        if item.assignments:
            return len(item.assignments)
        return int(item.num_partitions) if item.num_partitions > 0 else default
    name = item if isinstance(item, str) else item.name
    if name is None:
        name = image.topic_names_by_id.get(item.topic_id)
    topic = topics.get(name or "")
    present = 0 if topic is None else len(topic.partitions)
    return present if api == "DeleteTopics" else max(int(item.count) - present, 0)


def _refusal(item: Any) -> Fields:
    return {
        "name": item if isinstance(item, str) else item.name,
        "topic_id": getattr(item, "topic_id", None),
        "error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "error_message": "The throttling quota has been exceeded.",
        "configs": [],
    }

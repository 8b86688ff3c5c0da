"""Values of a session: symbols worked out before a step is sent, answers turned into plain data."""

import base64
import dataclasses
import datetime
import uuid
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tests.oracle import batches
from tests.oracle.session import Json

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def resolve(value: Json, prefix: str, answers: Mapping[str, Json]) -> Any:
    """The fields of a request with every symbol replaced."""
    if isinstance(value, list | tuple):
        return [resolve(one, prefix, answers) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key == "$name":
            return f"{prefix}{inner}"
        if key == "$ref":
            return _referred(inner, prefix, answers)
        if key == "$bytes":
            return bytes.fromhex(inner)
        if key == "$uuid":
            return uuid.UUID(inner)
        if key == "$text":
            return inner[0] * inner[1]
        if key == "$share":
            group, topic_id, partition = (resolve(one, prefix, answers) for one in inner)
            return _share_key(f"{prefix}{group}", topic_id, partition)
        if key == "$acquired":
            return _acquired(inner, prefix, answers)
        if key == "$batches":
            return b"".join(batches.build(resolve(one, prefix, answers)) for one in inner)
    return {key: resolve(inner, prefix, answers) for key, inner in value.items()}


def _referred(reference: list[Any], prefix: str, answers: Mapping[str, Json]) -> Any:
    label, path, otherwise, plus = reference
    found = at_path(answers.get(label), path)
    if found is None or (isinstance(found, int) and found < 0):
        # an answer with an error has -1 for ids and epochs
        return resolve(otherwise, prefix, answers)
    if isinstance(found, dict):
        return resolve(found, prefix, answers)
    return found + plus if plus else found


def _acquired(asked: list[Any], prefix: str, answers: Mapping[str, Json]) -> list[dict[str, Any]]:
    """What is said of records that a ShareFetch gave: of all, of the first or of those behind it."""
    labels, partition, which, kind = asked
    path = ["responses", 0, "partitions", {"partition_index": partition}, "acquired_records"]
    rows = [row for label in labels for row in at_path(answers.get(label), path) or ()]
    spans = sorted((row["first_offset"], row["last_offset"]) for row in rows) or [(0, 0)]
    first, last = spans[0]
    if which == "first":
        spans = [(first, first)]
    elif which == "rest":
        spans = [(first + 1, last) if last > first else (first, last), *spans[1:]]
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]} for first, last in spans
    ]


def _share_key(group_id: str, topic_id: uuid.UUID, partition: int) -> str:
    """What FindCoordinator calls a share partition."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"{group_id}:{text}:{partition}"


def at_path(value: Json, path: list[Any]) -> Json:
    """What stands at a path of names, numbers and fields of rows; None if nothing does."""
    for key in path:
        if isinstance(key, dict):
            rows = value if isinstance(value, list) else []
            value = next((row for row in rows if key.items() <= row.items()), None)
            continue
        if isinstance(key, int):
            if not isinstance(value, list) or not -len(value) <= key < len(value):
                return None
            value = value[key]
        else:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
    return value


def labels_in(value: Json) -> set[str]:
    """The labels of the steps that a request refers to."""
    if isinstance(value, list | tuple):
        return set().union(*map(labels_in, value))
    if not isinstance(value, dict):
        return set()
    if "$ref" in value:
        return {value["$ref"][0]} | labels_in(value["$ref"][2])
    if "$acquired" in value:
        return set(value["$acquired"][0])
    return set().union(*map(labels_in, value.values()))


def plain(value: Any, kafka_type: str = "") -> Json:
    """An answer as mappings, lists, numbers and texts."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name), field.metadata.get("kafka_type", ""))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple | list):
        return [plain(one, kafka_type) for one in value]
    if isinstance(value, Enum):
        return int(value.value)
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round((value - _EPOCH).total_seconds() * 1000)
    if isinstance(value, uuid.UUID):
        return {"$uuid": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        if kafka_type == "records":
            return batches.read(bytes(value))
        return {"$bytes": bytes(value).hex()}
    return value

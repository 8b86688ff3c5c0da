"""How kio describes a message: the parts of a field's type, and what an absent field means.

kio's schemas are dataclasses, one per message and version. A field's Python type says whether it is an array
or may be null; its metadata has Kafka's type and, for tagged fields, the tag.
"""

import dataclasses
import datetime
from typing import Any, get_args, get_origin

_ZERO_BY_KAFKA_TYPE: dict[str, Any] = {
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": None,
}


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """Split a field's type into (inner type, is an array, may be None)."""
    nullable = type(None) in get_args(annotation)
    if nullable and get_origin(annotation) is not tuple:
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        if type(None) in get_args(inner):
            inner = next(a for a in get_args(inner) if a is not type(None))
        return inner, True, nullable
    return annotation, False, nullable


def absent_value(field: Any, is_array: bool, nullable: bool) -> Any:
    """What an absent primitive or array field stands for: the schema's default, or else nothing."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if is_array:
        return None if nullable else ()
    if nullable:
        return None
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    return _ZERO_BY_KAFKA_TYPE.get(kafka_type, 0)

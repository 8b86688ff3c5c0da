"""The options of the sink and the columns it takes, checked in the driver before anything is written.

A name that nobody knows is refused if it looks like a slip, as the source does: `delivry=at_least_once` would
otherwise mean exactly once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import BadOption
from tidelog.pipelines.commit_protocol import check_query_name
from tidelog.pipelines.source_options import refuse_slips
from tidelog.records.compression import Codec

#: option names as they are documented
NAMES = (
    "topic",
    "delivery",
    "transactionalIdPrefix",
    "twoPhaseCommit",
    "txnAppId",
    "txnVersion",
)
EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
_KAFKA_PREFIX = "kafka."
DEFAULT_PREFIX = "tidelog-spark-"
#: what brokers allow unless transaction.max.timeout.ms says otherwise
TRANSACTION_TIMEOUT_MS_DEFAULT = 900_000
TRANSACTION_TIMEOUT_MS_MIN = 4_000
BATCH_BYTES_DEFAULT = 256 << 10
DELIVERY_TIMEOUT_MS_DEFAULT = 120_000
#: ours; the library's own default for lz4 is its slowest
_LEVELS = {Codec.LZ4: 1}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How to write; can be pickled, for it goes to the executors."""

    settings: ClientSettings
    topic: str | None
    delivery: str
    transactional_id_prefix: str
    transaction_timeout_ms: int
    two_phase: bool
    codec: Codec
    level: int | None
    batch_bytes: int
    delivery_timeout_ms: int
    #: of a batch write that is to happen once however often it is tried
    application: str | None = None
    version: int | None = None

    @property
    def exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Raises BadOption."""
        own = {name.lower(): str(value).strip() for name, value in options.items()}
        kafka = {
            name[len(_KAFKA_PREFIX) :]: str(value)
            for name, value in options.items()
            if name.lower().startswith(_KAFKA_PREFIX)
        }
        refuse_slips(own, NAMES)
        delivery = own.get("delivery", EXACTLY_ONCE).lower().replace("-", "_")
        if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
            raise BadOption(f"delivery is {EXACTLY_ONCE} or {AT_LEAST_ONCE}, not {own['delivery']!r}")
        if "transactional.id" in kafka:
            raise BadOption("kafka.transactional.id is chosen by the sink; set transactionalIdPrefix instead")
        if kafka.get("acks", "all").lower() not in ("all", "-1"):
            raise BadOption("kafka.acks: the sink always waits for all replicas in sync (all)")
        if kafka.get("enable.idempotence", "true").lower() != "true":
            raise BadOption("kafka.enable.idempotence: the sink is always idempotent")
        codec = _codec(kafka.get("compression.type", kafka.get("compression.codec", "none")))
        timeout_ms = _number(kafka, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS_DEFAULT)
        if timeout_ms < TRANSACTION_TIMEOUT_MS_MIN:
            raise BadOption(f"kafka.transaction.timeout.ms is at least {TRANSACTION_TIMEOUT_MS_MIN}")
        application, version = own.get("txnappid"), own.get("txnversion")
        if (application is None) != (version is None):
            raise BadOption("txnAppId and txnVersion belong together: the write of a version happens once")
        prefix = own.get("transactionalidprefix", DEFAULT_PREFIX)
        try:
            check_query_name(f"{prefix}{application or ''}")
        except ValueError as fault:
            raise BadOption(f"txnAppId or transactionalIdPrefix: {fault}; choose another name") from None
        return cls(
            settings=ClientSettings.from_options(kafka),
            topic=own.get("topic") or None,
            delivery=delivery,
            transactional_id_prefix=prefix,
            transaction_timeout_ms=timeout_ms,
            two_phase=_flag(own, "twophasecommit", default=True),
            codec=codec,
            level=_LEVELS.get(codec),
            batch_bytes=_number(kafka, "batch.size", BATCH_BYTES_DEFAULT),
            delivery_timeout_ms=_number(kafka, "delivery.timeout.ms", DELIVERY_TIMEOUT_MS_DEFAULT),
            application=application,
            version=None if version is None else _number(own, "txnversion", 0),
        )


def _codec(name: str) -> Codec:
    try:
        return Codec[name.strip().upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise BadOption(f"kafka.compression.type is one of {known}, not {name!r}") from None


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) >= 2**31:
        raise BadOption(f"{name} is a number from 0 to 2147483647, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"{name} is true or false, not {text!r}")
    return text == "true"


_TEXT = (BinaryType, StringType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "key": _TEXT,
    "value": _TEXT,
    "partition": (IntegerType,),
    "headers": (ArrayType,),
    "timestamp": (TimestampType, TimestampNTZType),
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises BadOption for columns that cannot be written; those it does not know are not written."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise BadOption(
            f"a column 'value' of binary or string is needed; there is {', '.join(kinds) or 'none'}"
        )
    if topic is None and "topic" not in kinds:
        raise BadOption("where to? Set the option 'topic', or have a column 'topic'")
    for name, allowed in _COLUMNS.items():
        kind = kinds.get(name)
        if kind is not None and not isinstance(kind, allowed):
            wanted = " or ".join(one.typeName() for one in allowed)
            raise BadOption(f"column '{name}' is {kind.simpleString()}; it must be {wanted}")
    headers = kinds.get("headers")
    if isinstance(headers, ArrayType):
        entry = headers.elementType
        if not isinstance(entry, StructType) or [type(field.dataType) for field in entry.fields] not in (
            [StringType, BinaryType],
            [StringType, StringType],
        ):
            raise BadOption("column 'headers' must be array<struct<key:string,value:binary>>")

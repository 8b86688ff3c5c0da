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
from tidelog.client.option_rows import OptionRow, choice, flag, number, read_table, text
from tidelog.pipelines.commit_protocol import check_query_name
from tidelog.pipelines.source_options import refuse_slips
from tidelog.records.compression import Codec

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
#: by the field of SinkOptions that they fill
ROWS: dict[str, OptionRow] = {
    "topic": text("topic"),
    "delivery": choice("delivery", choices=(EXACTLY_ONCE, AT_LEAST_ONCE), default=EXACTLY_ONCE),
    "transactional_id_prefix": text("transactionalIdPrefix", default=DEFAULT_PREFIX),
    "two_phase": flag("twoPhaseCommit", default=True),
    "application": text("txnAppId"),
    "version": number("txnVersion"),
    "transaction_timeout_ms": number(
        "kafka.transaction.timeout.ms",
        default=TRANSACTION_TIMEOUT_MS_DEFAULT,
        least=TRANSACTION_TIMEOUT_MS_MIN,
    ),
    "codec": choice(
        "kafka.compression.type",
        "kafka.compression.codec",
        choices=tuple(codec.name.lower() for codec in Codec),
        default="none",
    ),
    "batch_bytes": number("kafka.batch.size", default=BATCH_BYTES_DEFAULT),
    "delivery_timeout_ms": number("kafka.delivery.timeout.ms", default=DELIVERY_TIMEOUT_MS_DEFAULT),
}
_OWN_NAMES = tuple(row.name for row in ROWS.values() if not row.name.startswith(_KAFKA_PREFIX))


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
        kafka = {
            name.lower().removeprefix(_KAFKA_PREFIX): str(value)
            for name, value in options.items()
            if name.lower().startswith(_KAFKA_PREFIX)
        }
        refuse_slips((name.lower() for name in options), _OWN_NAMES)
        values = read_table(ROWS, options)
        if "transactional.id" in kafka:
            raise BadOption("kafka.transactional.id is chosen by the sink; set transactionalIdPrefix instead")
        if kafka.get("acks", "all").lower() not in ("all", "-1"):
            raise BadOption("kafka.acks: the sink always waits for all replicas in sync (all)")
        if kafka.get("enable.idempotence", "true").lower() != "true":
            raise BadOption("kafka.enable.idempotence: the sink is always idempotent")
        if (values["application"] is None) != (values["version"] is None):
            raise BadOption("txnAppId and txnVersion belong together: the write of a version happens once")
        try:
            check_query_name(f"{values['transactional_id_prefix']}{values['application'] or ''}")
        except ValueError as fault:
            raise BadOption(f"txnAppId or transactionalIdPrefix: {fault}; choose another name") from None
        codec = Codec[values["codec"].upper()]
        values |= {"topic": values["topic"] or None, "codec": codec, "level": _LEVELS.get(codec)}
        return cls(settings=ClientSettings.from_options(kafka), **values)


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

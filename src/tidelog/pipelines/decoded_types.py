"""The column of decoded values as Spark has it.

The id of the schema that it was made of is kept in the metadata of the column. Spark asks for the columns,
and later, in another process, for a reader of them: the latest schema may be another one by then.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

if TYPE_CHECKING:
    from tidelog.pipelines.decoded_values import Decoding

SCHEMA_ID = "tidelog.schema.id"
_SIMPLE: dict[Any, DataType] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampNTZType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def decoded_field(decoding: "Decoding") -> StructField:
    """The column `value`, typed."""
    from tidelog.pipelines.decoded_values import decoder_of

    kind = spark_type(decoder_of(decoding).type)
    return StructField("value", kind, metadata={SCHEMA_ID: decoding.schema.id})


def schema_id_of(schema: StructType) -> int | None:
    """The id that the columns were made of; None where Spark did not keep it."""
    for one in schema.fields:
        if one.name == "value":
            found = (one.metadata or {}).get(SCHEMA_ID)
            return found if isinstance(found, int) else None
    return None


def spark_type(kind: pa.DataType) -> DataType:
    """Spark's type for one of Arrow's."""
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _SIMPLE[kind]

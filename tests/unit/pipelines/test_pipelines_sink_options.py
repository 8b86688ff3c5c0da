"""Options and columns of the sink: what is taken, what is refused and in which words."""

import pickle

import pytest

pytest.importorskip("pyspark")  # Spark is an extra

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.faults import BadOption
from tidelog.pipelines.sink_options import SinkOptions, check_columns
from tidelog.records.compression import Codec

STRING, BINARY, INT, LONG, TIMESTAMP = StringType(), BinaryType(), IntegerType(), LongType(), TimestampType()
HEADERS = ArrayType(StructType([StructField("key", STRING), StructField("value", BINARY)]))
SERVERS = {"kafka.bootstrap.servers": "a:1,b:2"}


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_defaults() -> None:
    options = SinkOptions.read(SERVERS)
    assert options.exactly_once and options.two_phase and options.topic is None
    assert options.codec is Codec.NONE and options.transaction_timeout_ms == 900_000
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_taken_in_any_case() -> None:
    options = SinkOptions.read(
        {
            **SERVERS,
            "Topic": "out",
            "DELIVERY": "at-least-once",
            "transactionalIdPrefix": "mine-",
            "twoPhaseCommit": "false",
            "txnAppId": "app",
            "txnVersion": "7",
            "kafka.compression.type": "lz4",
            "kafka.batch.size": "1000",
        }
    )
    assert (options.topic, options.exactly_once, options.transactional_id_prefix) == ("out", False, "mine-")
    assert (options.application, options.version, options.two_phase) == ("app", 7, False)
    assert (options.codec, options.level, options.batch_bytes) == (Codec.LZ4, 1, 1_000)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("delivery", "perhaps", "exactly_once or at_least_once"),
        ("kafka.transactional.id", "x", "transactionalIdPrefix"),
        ("kafka.acks", "1", "all replicas"),
        ("kafka.enable.idempotence", "false", "always idempotent"),
        ("kafka.compression.type", "brotli", "none, gzip, snappy, lz4, zstd"),
        ("kafka.transaction.timeout.ms", "10", "at least 4000"),
        ("kafka.batch.size", "many", "is a number"),
        ("twoPhaseCommit", "maybe", "true or false"),
        ("txnAppId", "app", "belong together"),
        ("delivry", "at_least_once", "is 'delivery' meant"),
        ("topics", "out", "is 'topic' meant"),
        ("TwoPhasesCommit", "false", "is 'twoPhaseCommit' meant"),
        ("transactionIdPrefix", "mine-", "is 'transactionalIdPrefix' meant"),
        ("bootstrap.servers", "a:1", r"is 'kafka\.bootstrap\.servers' meant"),
        ("transactionalIdPrefix", "job.batch.3", "number of its batch"),
    ],
)
def test_what_is_refused(option: str, value: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        SinkOptions.read({**SERVERS, option: value})


@pytest.mark.parametrize("name", ["job.batch.3", ".batch.", "a.batch.3.0"])
def test_a_name_that_looks_like_a_transaction_of_another(name: str) -> None:
    with pytest.raises(BadOption, match="choose another name"):
        SinkOptions.read({**SERVERS, "txnAppId": name, "txnVersion": "0"})


def test_options_of_spark_are_passed_over() -> None:
    given = {"checkpointLocation": "/c", "path": "/p", "queryName": "q", "outputMode": "append"}
    SinkOptions.read({**SERVERS, **given})


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ({"key": STRING}, "t", "column 'value'"),
        ({"value": INT}, "t", "must be binary or string"),
        ({"value": STRING}, None, "Set the option 'topic'"),
        ({"value": STRING, "partition": LONG}, "t", "must be integer"),
        ({"value": STRING, "headers": STRING}, "t", "must be array"),
        ({"value": STRING, "headers": ArrayType(INT)}, "t", "array<struct<key:string,value:binary>>"),
        ({"value": STRING, "timestamp": LONG}, "t", "must be timestamp"),
    ],
)
def test_columns_that_cannot_be_written(columns: dict[str, DataType], topic: str | None, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        check_columns(schema_of(**columns), topic)


def test_columns_that_can() -> None:
    check_columns(schema_of(value=BINARY), "t")
    columns = {"topic": STRING, "key": STRING, "value": BINARY, "partition": INT, "headers": HEADERS}
    check_columns(schema_of(**columns, timestamp=TIMESTAMP, offset=LONG), None)

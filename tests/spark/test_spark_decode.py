"""`option("decode", …)` on a real Spark: values that Confluent's serializers wrote, as typed columns."""

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.registry_process import RegistryProcess
from tidelog.registry.formats.protoc_child import compiled

SECONDS_MAX = 100
MakeTopic = Callable[..., str]
pytestmark = pytest.mark.timeout(240)

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "int"},
    {"name": "customer", "type": "string"},
    {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "prices", "type": {"type": "map", "values": ["null", "double"]}},
    {
        "name": "home",
        "type": ["null", {"type": "record", "name": "A", "fields": [{"name": "city", "type": "string"}]}],
    },
]
CART = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Empty {}
message Cart {
  int64 id = 1;
  repeated Item items = 2;
  google.protobuf.Timestamp at = 3;
  map<string, sint64> counts = 4;
  State state = 5;
  message Item { string sku = 1; uint32 count = 2; }
  enum State { NEW = 0; PAID = 1; }
}
"""
AT = datetime.datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
#: later schemas: id is a long, customer is gone, note was not written by the first
LATER = [{"name": "id", "type": "long"}, *FIELDS[2:], {"name": "note", "type": "string", "default": "-"}]


def order(fields: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "total": decimal.Decimal(number) / 100,
        "at": AT,
        "tags": ["x"] * (number % 3),
        "prices": {"eur": 1.5, "usd": None} if number % 2 else {},
        "home": {"city": f"c{number}"} if number % 2 else None,
        **more,
    }


@pytest.fixture(scope="module")
def registry(bootstrap: str) -> Iterator[str]:
    with RegistryProcess(bootstrap) as running:
        yield running.url


class Topic:
    """A topic, and what writes to it."""

    def __init__(self, bootstrap: str, registry: str, name: str) -> None:
        self.name = name
        self.client = SchemaRegistryClient({"url": registry})
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": name,
            "decode": "avro",
            "schema.registry.url": registry,
        }

    def write(self, schema: str, *rows: Any) -> None:
        serialize = AvroSerializer(self.client, schema)
        context = SerializationContext(self.name, MessageField.VALUE)
        self.send(*(serialize(one, context) for one in rows))

    def send(self, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce(self.name, value, partition=0)
        assert self._producer.flush(SECONDS_MAX) == 0


@pytest.fixture
def topic(bootstrap: str, registry: str, make_topic: MakeTopic) -> Topic:
    return Topic(bootstrap, registry, make_topic(1))


def test_typed_columns_and_evolution(spark: SparkSession, topic: Topic) -> None:
    topic.write(order(FIELDS), *(row(number, customer="ann") for number in range(4)))
    topic.write(order(LATER), *(row(number, note="n") for number in range(4, 7)))
    topic.send(None)
    frame = spark.read.format("tidelog").options(**topic.options).load()
    assert [(one.name, one.dataType.simpleString()) for one in frame.schema["value"].dataType.fields] == [
        ("id", "bigint"),
        ("total", "decimal(9,2)"),
        ("at", "timestamp"),
        ("tags", "array<string>"),
        ("prices", "map<string,double>"),
        ("home", "struct<city:string>"),
        ("note", "string"),
    ]
    *found, last = [one.value for one in frame.orderBy("offset").collect()]
    assert last is None
    assert [one.asDict(recursive=True) for one in found] == [
        {**row(number, note="-" if number < 4 else "n"), "at": AT.replace(tzinfo=None)} for number in range(7)
    ]
    summed = frame.selectExpr("sum(value.total) AS total", "count(value.home.city) AS homes").collect()[0]
    assert (str(summed.total), summed.homes) == ("0.21", 3)
    first = {**topic.options, "decode.schema": "1"}
    old = spark.read.format("tidelog").options(**first, endingOffsets=json.dumps({topic.name: {"0": 4}}))
    assert [one.customer for one in old.load().select("value.customer").collect()] == ["ann"] * 4


def test_a_stream_keeps_its_columns_when_the_schema_changes(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(order(FIELDS), row(1, customer="ann"))
    options = {**topic.options, "startingOffsets": "earliest"}
    frame = spark.readStream.format("tidelog").options(**options).load().select("value.*")
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        with_default = [
            {**field, "default": "nobody"} if field["name"] == "customer" else field for field in FIELDS
        ]
        topic.client.set_compatibility(f"{topic.name}-value", "NONE")
        topic.write(order([*with_default, LATER[-1]]), row(2, customer="bob", note="new"))
        query.processAllAvailable()
    finally:
        query.stop()
    read = spark.read.parquet(str(tmp_path / "out"))
    assert read.columns == [field["name"] for field in FIELDS]
    assert sorted((one.id, one.customer) for one in read.collect()) == [(1, "ann"), (2, "bob")]


def test_bad_records_fail_or_are_told(spark: SparkSession, topic: Topic) -> None:
    schema_id = topic.client.register_schema(f"{topic.name}-value", Schema('"string"', "AVRO"))
    framed = b"\0" + schema_id.to_bytes(4, "big")
    bad = [b"plain", b"", framed + b"\x10x", framed + b"\x02\xff", b"\0\x7f\xff\xff\xff\x02x"]
    topic.send(*bad, None, framed + b"\x04ok")
    reader = spark.read.format("tidelog").options(**topic.options)
    with pytest.raises(PySparkException, match=rf"{topic.name}-0, offset 0: it is not framed"):
        reader.load().collect()
    told = reader.option("decode.mode", "PERMISSIVE").load().orderBy("offset").collect()
    assert [one.value for one in told] == [None] * 6 + ["ok"]
    assert [one.valueBytes and bytes(one.valueBytes) for one in told[:5]] == [*bad[:1], b"", *bad[2:]]
    assert [one.valueBytes for one in told[5:]] == [None, None]
    reasons = [one.valueFault for one in told]
    for reason, words in zip(
        reasons, ("not framed", "not framed", "cut off", "utf-8", "does not know"), strict=False
    ):
        assert words in reason, reasons
    assert reasons[5:] == [None, None]


def test_protobuf(spark: SparkSession, topic: Topic) -> None:
    files = {"cart.proto": CART}
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(files, "cart.proto")).file:
        pool.Add(file)
    cart = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Cart"))
    serialize = ProtobufSerializer(cart, topic.client, {"use.deprecated.format": False})
    value = {"id": 7, "items": [{"sku": "a", "count": 3}, {"sku": "b"}], "counts": {"x": -9}, "state": 1}
    message = cart(**value)
    message.at.FromDatetime(AT)
    topic.send(serialize(message, SerializationContext(topic.name, MessageField.VALUE)))
    given = {**topic.options, "decode": "protobuf", "decode.message": "shop.Cart"}
    frame = spark.read.format("tidelog").options(**given).load()
    (found,) = frame.collect()
    assert found.value.asDict(recursive=True) == {
        "id": 7,
        "items": [{"sku": "a", "count": 3}, {"sku": "b", "count": None}],
        "at": AT.replace(tzinfo=None),
        "counts": {"x": -9},
        "state": "PAID",
    }
    assert frame.selectExpr("inline(value.items)").count() == 2


def test_what_to_do_is_said(spark: SparkSession, topic: Topic) -> None:
    def fault(**changed: str) -> str:
        given = {**topic.options, **{name.replace("_", "."): value for name, value in changed.items()}}
        with pytest.raises(PySparkException) as raised:
            spark.read.format("tidelog").options(**given).load().collect()
        return str(raised.value)

    assert "40401" in fault() and f"{topic.name}-value" in fault()
    assert "decode is " in fault(decode="thrift")
    assert "latest, the number of a version, or id:7" in fault(decode_schema="newest")
    assert "schema.registry.url" in fault(schema_registry_url="")
    linked = '{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}'
    topic.client.register_schema(f"{topic.name}-value", Schema(linked, "AVRO"))
    assert "holds itself" in fault()

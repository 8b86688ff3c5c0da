"""`tidelog produce --schema` and `tidelog consume --schema` with Confluent's serializers at the other end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker, new_name
from tests.conformance.test_conformance_cli import Cli, cli
from tests.support.registry_process import RegistryProcess
from tidelog.registry.formats.protoc_child import compiled

__all__ = ["cli"]

USER = '{"type":"record","name":"User","namespace":"x","fields":[{"name":"id","type":"int"}]}'
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "x",
        "fields": [
            {"name": "by", "type": "x.User"},
            {
                "name": "total",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
PERSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    }
)
CART = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Empty {}
message Cart {
  repeated Item items = 1;
  google.protobuf.Timestamp at = 2;
  map<string, sint64> counts = 3;
  oneof paid { string card = 4; bool cash = 5; }
  message Item { string sku = 1; uint32 count = 2; }
}
"""
CART_VALUE = {
    "items": [{"sku": "a", "count": 3}, {"sku": "b"}],
    "at": "2026-01-31T12:00:00.25Z",
    "counts": {"x": -9},
    "card": "c-1",
}


@pytest.fixture(scope="module")
def registry(bootstrap: str) -> Iterator[str]:
    topic = new_name("schemas")
    with RegistryProcess(bootstrap, options=("--topic", topic, "--group", f"{topic}-group")) as running:
        yield running.url


@pytest.fixture
def client(registry: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry})


def context(topic: str, field: MessageField = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, field)


def send(bootstrap: str, topic: str, *records: tuple[Any, Any]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(DEADLINE_SECONDS) == 0


def received(bootstrap: str, topic: str, count: int = 1) -> list[tuple[Any, Any]]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": new_name("reader"),
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, DEADLINE_SECONDS)
        assert len(messages) == count and all(message.error() is None for message in messages)
        return [(message.key(), message.value()) for message in messages]
    finally:
        consumer.close()


def cart_class() -> Any:
    files = {"cart.proto": CART}
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(files, "cart.proto")).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Cart"))


def test_avro_by_both(
    cli: Cli, registry: str, client: SchemaRegistryClient, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    client.register_schema("users", Schema(USER, "AVRO"))
    order = Schema(ORDER, "AVRO", [SchemaReference("x.User", "users", 1)])
    order_id = client.register_schema(f"{topic}-value", order)
    client.register_schema(f"{topic}-key", Schema('"long"', "AVRO"))
    key = AvroSerializer(client, '"long"')
    lines = '7;{"by":{"id":1},"total":"12.50","note":"gr\u00fc\u00dfe"}\n8;{"by":{"id":2},"total":0.01}\n'
    options = ("--registry", registry, "--schema", "latest", "--key-schema", "1", "-K", ";", "-q")
    cli("produce", topic, *options, stdin=lines)
    read = AvroDeserializer(client)
    values = [
        (read(key, context(topic, MessageField.KEY)), read(value, context(topic)))
        for key, value in received(bootstrap, topic, 2)
    ]
    assert [(number, str(value["total"]), value["note"]) for number, value in values] == [
        (7, "12.50", "gr\u00fc\u00dfe"),
        (8, "0.01", None),
    ]
    send(
        bootstrap,
        topic,
        (key(9, context(topic, MessageField.KEY)), b"\0" + order_id.to_bytes(4, "big") + b"\x06\x02\x05\x00"),
        (key(10, context(topic, MessageField.KEY)), None),
    )
    shown = cli("consume", topic, "--schema", "--key-schema", "--registry", registry, "-e", "--json").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [
        (7, {"by": {"id": 1}, "total": "12.50", "note": "gr\u00fc\u00dfe"}),
        (8, {"by": {"id": 2}, "total": "0.01", "note": None}),
        (9, {"by": {"id": 3}, "total": "0.05", "note": None}),
        (10, None),
    ]
    assert {row.get("value_schema_id") for row in rows[:3]} == {order_id}
    # What was printed is what can be sent.
    copy = make_topic()
    chosen = ("--schema", f"id:{order_id}", "--key-schema", f"id:{rows[0]['key_schema_id']}")
    cli("produce", copy, "--json", *chosen, "--registry", registry, "-q", stdin=shown)
    assert received(bootstrap, copy, 4) == received(bootstrap, topic, 4)


def test_json_schema_by_both(
    cli: Cli,
    registry: str,
    client: SchemaRegistryClient,
    bootstrap: str,
    make_topic: TopicMaker,
    tmp_path: Path,
) -> None:
    topic = make_topic()
    file = tmp_path / "person.json"
    file.write_text(PERSON)
    cli("produce", topic, "--schema", str(file), "--registry", registry, stdin='{"name":"Ada","age":36}\n')
    ((_, value),) = received(bootstrap, topic)
    assert JSONDeserializer(PERSON)(value, context(topic)) == {"name": "Ada", "age": 36}
    written = JSONSerializer(PERSON, client)({"name": "Bob"}, context(topic))
    assert written is not None
    send(bootstrap, topic, (b"k", written))
    shown = cli("consume", topic, "--schema", "--registry", registry, "-e", "-f", "%k=%s %S\\n").stdout
    assert shown == '={"name":"Ada","age":36} 28\nk={"name":"Bob"} ' + f"{len(written)}\n"
    refused = cli(
        *("produce", topic, "--schema", "latest", "--registry", registry),
        stdin='{"name":"Eve"}\n{"age":-1}\n',
        code=1,
    ).stderr
    assert "standard input, line 2: value: age: -1 is less than the minimum of 0" in refused
    assert "those before it were sent" in refused


def test_protobuf_by_both(
    cli: Cli,
    registry: str,
    client: SchemaRegistryClient,
    bootstrap: str,
    make_topic: TopicMaker,
    tmp_path: Path,
) -> None:
    topic, cart = make_topic(), cart_class()
    file = tmp_path / "cart.proto"
    file.write_text(CART)
    options = ("--schema", str(file), "--message", "shop.Cart", "--registry", registry, "-q")
    cli("produce", topic, *options, stdin=json.dumps(CART_VALUE) + "\n")
    ((_, value),) = received(bootstrap, topic)
    read = ProtobufDeserializer(cart, {"use.deprecated.format": False})(value, context(topic))
    shown = {**CART_VALUE, "at": "2026-01-31T12:00:00.250Z", "counts": {"x": "-9"}}
    assert json_format.MessageToDict(read) == shown
    other = make_topic()
    write = ProtobufSerializer(cart, client, {"use.deprecated.format": False})
    send(bootstrap, other, (None, write(read, context(other))))
    consumed = cli("consume", other, "--schema", "--registry", registry, "-e").stdout
    assert json.loads(consumed) == CART_VALUE


def test_what_cannot_be_decoded_is_told_record_by_record(
    cli: Cli, registry: str, client: SchemaRegistryClient, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    schema_id = client.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    good = AvroSerializer(client, '"string"')("good", context(topic))
    framed = b"\0" + schema_id.to_bytes(4, "big")
    bad = [b"plain", framed + b"\x10x", b"\0\x7f\xff\xff\xff\x02x", b""]
    send(bootstrap, topic, *((None, value) for value in (*bad, good)))
    seen = cli("consume", topic, "--schema", "--registry", registry, "-e", code=1)
    assert seen.stdout == '"good"\n'
    told = seen.stderr.splitlines()
    assert [line.partition(": ")[0] for line in told] == [
        f"{topic}-0, offset {number}" for number in range(4)
    ]
    assert "not framed" in told[0] and "without --schema" in told[0]
    assert f"schema {schema_id}: the value is cut off" in told[1]
    assert "does not know schema 2147483647; is --registry" in told[2]
    rows = cli("consume", topic, "--schema", "--registry", registry, "-e", "--json", code=1).stdout
    first, *_, last = (json.loads(line) for line in rows.splitlines())
    assert first["value_base64"] == "cGxhaW4=" and "not framed" in first["value_fault"]
    assert last["value"] == "good"


def test_what_to_do_is_said(cli: Cli, registry: str, make_topic: TopicMaker, tmp_path: Path) -> None:
    topic = make_topic()
    at = ("--registry", registry)
    absent = cli("produce", topic, "--schema", "latest", *at, stdin="1\n", code=1).stderr
    assert f"tidelog schema register {topic}-value FILE" in absent
    assert "is no schema" in cli("produce", topic, "--schema", "newest", *at, code=2).stderr
    gone = str(tmp_path / "gone.avsc")
    assert "check the path" in cli("produce", topic, "--schema", gone, *at, code=1).stderr
    away = ("--registry", "http://127.0.0.1:1")
    assert "start one with" in cli("produce", topic, "--schema", "latest", *away, code=1).stderr
    broken = tmp_path / "broken.avsc"
    broken.write_text('{"type": "record"}')
    assert "42201" in cli("produce", topic, "--schema", str(broken), *at, code=1).stderr
    whole = tmp_path / "whole.avsc"
    whole.write_text('"int"')
    for line, words in (("x", "value: not JSON"), ('"x"', "value: the value: 'x' is no int")):
        refused = cli("produce", topic, "--schema", str(whole), *at, stdin=line, code=1).stderr
        assert words in refused
    cli("produce", topic, "--schema", "latest", *at, stdin="5\n")
    assert "no answer from the registry" in cli("consume", topic, "--schema", *away, "-e", code=1).stderr

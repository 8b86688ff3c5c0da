"""Confluent's own client and serializers, unchanged, on our registry: references, evolution, deletes.

The cluster underneath is the one of the tier: Tidelog, or an Apache Kafka (TIDELOG_TEST_BOOTSTRAP).
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker, new_name
from tests.support.registry_process import RegistryProcess
from tidelog.registry.formats.protoc_child import compiled
from tidelog.registry.records import StoredRecord
from tidelog.registry.schema_log import UnfitTopic, ensure_topic
from tidelog.registry.writer import Fenced, FencedWriter

USER = '{"type":"record","name":"User","namespace":"x","fields":[{"name":"id","type":"int"}]}'
ORDER = '{"type":"record","name":"Order","namespace":"x","fields":[{"name":"by","type":"x.User"}]}'
ORDER_WITH_TOTAL = (
    '{"type":"record","name":"Order","namespace":"x","fields":[{"name":"by","type":"x.User"},'
    '{"name":"total","type":"double","default":1.5}]}'
)
PERSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Person",
    "type": "object",
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "home": {"$ref": "address.json"}},
}
ADDRESS = '{"title":"Address","type":"object","properties":{"city":{"type":"string"}}}'
PROTO = {
    "shop/item.proto": 'syntax = "proto3"; package shop; message Item { string sku = 1; int32 count = 2; }',
    "shop/cart.proto": """
        syntax = "proto3"; package shop;
        import "shop/item.proto"; import "google/protobuf/timestamp.proto";
        message Cart {
          repeated Item items = 1;
          google.protobuf.Timestamp at = 2;
          map<string, Note> notes = 3;
          oneof paid { string card = 4; bool cash = 5; }
          message Note { string text = 1; }
        }
    """,
}


@pytest.fixture(scope="module")
def url(bootstrap: str) -> Iterator[str]:
    topic = new_name("schemas")
    options = ("--topic", topic, "--group", f"{topic}-group")
    with RegistryProcess(bootstrap, options=options) as registry:
        yield registry.url


def test_a_predecessor_writes_nothing_more(bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(cleanup_policy="compact")
    properties = {"bootstrap.servers": bootstrap}
    first = FencedWriter.claim(properties, topic, topic)
    record = StoredRecord(b"a", b"1")
    assert first.write([record]) == 0
    second = FencedWriter.claim(properties, topic, topic)
    assert second.write([record, record]) > 0
    with pytest.raises(Fenced):
        first.write([record])
    assert second.write([record]) > 0
    first.close()
    second.close()


def test_a_topic_that_would_lose_schemas_is_refused(bootstrap: str, make_topic: TopicMaker) -> None:
    properties = {"bootstrap.servers": bootstrap}
    with pytest.raises(UnfitTopic, match=r"cleanup\.policy"):
        ensure_topic(properties, make_topic(cleanup_policy="delete"))
    with pytest.raises(UnfitTopic, match="partitions"):
        ensure_topic(properties, make_topic(2, cleanup_policy="compact"))
    ensure_topic(properties, make_topic(cleanup_policy="compact"))


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def sent(bootstrap: str, topic: str, value: bytes) -> bytes:
    """A value that has been through the cluster."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(DEADLINE_SECONDS) == 0
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None and message.error() is None
        return message.value() or b""
    finally:
        consumer.close()


def test_avro_with_a_reference_evolves(
    client: SchemaRegistryClient, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    client.register_schema(f"{topic}-user", Schema(USER, "AVRO"))
    reference = SchemaReference("x.User", f"{topic}-user", 1)
    old = AvroSerializer(client, Schema(ORDER, "AVRO", [reference]))
    value = old({"by": {"id": 7}}, value_of(topic))
    assert value is not None
    assert AvroDeserializer(client)(sent(bootstrap, topic, value), value_of(topic)) == {"by": {"id": 7}}
    new = AvroSerializer(client, Schema(ORDER_WITH_TOTAL, "AVRO", [reference]))
    written = new({"by": {"id": 8}, "total": 2.0}, value_of(topic))
    reader = AvroDeserializer(client, Schema(ORDER_WITH_TOTAL, "AVRO", [reference]))
    assert reader(value, value_of(topic)) == {"by": {"id": 7}, "total": 1.5}, (
        "an old record, read with the new"
    )
    assert AvroDeserializer(client)(written, value_of(topic)) == {"by": {"id": 8}, "total": 2.0}
    assert client.get_versions(f"{topic}-value") == [1, 2]


def test_avro_that_does_not_fit_is_refused(client: SchemaRegistryClient) -> None:
    topic = new_name("refused")
    AvroSerializer(client, USER)({"id": 1}, value_of(topic))
    with pytest.raises(SchemaRegistryError) as refused:
        AvroSerializer(client, USER.replace('"int"', '"string"'))({"id": "x"}, value_of(topic))
    assert refused.value.http_status_code == 409 and refused.value.error_code == 40901


def test_json_with_a_reference(client: SchemaRegistryClient, bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic()
    client.register_schema(f"{topic}-address", Schema(ADDRESS, "JSON"))
    reference = SchemaReference("address.json", f"{topic}-address", 1)
    schema = Schema(json.dumps(PERSON), "JSON", [reference])
    value = JSONSerializer(schema, client)({"name": "A", "home": {"city": "B"}}, value_of(topic))
    assert value is not None
    reader = JSONDeserializer(schema, schema_registry_client=client)
    assert reader(sent(bootstrap, topic, value), value_of(topic)) == {"name": "A", "home": {"city": "B"}}
    wider = {**PERSON, "properties": {**PERSON["properties"], "age": {"type": "integer"}}}  # type: ignore[dict-item]
    JSONSerializer(Schema(json.dumps(wider), "JSON", [reference]), client)({"age": 3}, value_of(topic))
    assert client.get_versions(f"{topic}-value") == [1, 2], "a property added to a closed object"


def test_a_schema_that_the_cluster_takes_no_record_of(client: SchemaRegistryClient) -> None:
    subject = new_name("large")
    most = 1_000_000  # what the cluster's max.message.bytes leaves room for, and what it does not
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema('{"type":"string","doc":"' + "x" * 1_048_500 + '"}', "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (422, 42209)
    assert client.register_schema(subject, Schema('{"type":"string","doc":"' + "x" * most + '"}', "AVRO")) > 0
    assert client.get_versions(subject) == [1]


def message_class(name: str, files: dict[str, str]) -> Any:
    """The Python class of a message, as generated code would have it."""
    found = descriptor_pb2.FileDescriptorSet.FromString(compiled(files, next(reversed(files))))
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_protobuf_with_imports_evolves(
    client: SchemaRegistryClient, bootstrap: str, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    cart = message_class("shop.Cart", PROTO)
    written = cart(items=[{"sku": "a", "count": 2}], card="4711", notes={"x": {"text": "y"}})
    serializer = ProtobufSerializer(cart, client, {"use.deprecated.format": False})
    value = serializer(written, value_of(topic))
    assert value is not None
    reader = ProtobufDeserializer(cart, {"use.deprecated.format": False}, client)
    assert reader(sent(bootstrap, topic, value), value_of(topic)) == written
    registered = client.get_latest_version(f"{topic}-value")
    assert registered.schema.schema_type == "PROTOBUF"
    assert "shop/item.proto" in [row.name for row in registered.schema.references or ()]
    more = {**PROTO, "shop/cart.proto": PROTO["shop/cart.proto"].replace("map<", "int64 number = 9; map<")}
    newer = message_class("shop.Cart", more)
    ProtobufSerializer(newer, client, {"use.deprecated.format": False})(newer(number=5), value_of(topic))
    assert client.get_versions(f"{topic}-value") == [1, 2]


def test_every_call_of_the_client(client: SchemaRegistryClient) -> None:
    subject = new_name("calls")
    schema_id = client.register_schema(subject, Schema(USER, "AVRO"))
    registered = client.lookup_schema(subject, Schema(USER, "AVRO"))
    assert (registered.schema_id, registered.version) == (schema_id, 1)
    assert client.get_schema(schema_id).schema_str == USER
    assert registered.guid is not None
    assert client.get_schema_by_guid(registered.guid).schema_str == USER
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert subject in client.get_subjects_by_schema_id(schema_id)
    assert subject in [row.subject for row in client.get_schema_versions(schema_id)]
    assert subject in client.get_subjects()
    assert client.get_latest_version(subject).version == 1
    assert client.get_version(subject, 1).schema_id == schema_id
    assert client.get_referenced_by(subject, 1) == []
    assert client.test_compatibility(subject, Schema(USER, "AVRO"))
    assert client.test_compatibility_all_versions(subject, Schema(USER, "AVRO"))
    client.set_compatibility(subject, "FULL_TRANSITIVE")
    assert client.get_compatibility(subject) == "FULL_TRANSITIVE"
    client.set_config(subject, ServerConfig(compatibility_group="major"))
    assert client.get_config(subject).compatibility_group == "major"
    client.delete_config(subject)
    assert client.update_mode(subject, "READONLY") == "READONLY"
    assert client.get_mode(subject) == "READONLY"
    client.delete_mode(subject)
    assert client.get_global_mode() == "READWRITE"
    assert "." in client.get_contexts()
    owned = Schema(USER, "AVRO", metadata=Metadata(None, MetadataProperties({"owner": "x"}), None))
    client.register_schema(subject, owned)
    assert client.get_latest_with_metadata(subject, {"owner": "x"}).version == 2
    assert client.delete_version(subject, 1) == 1
    assert client.delete_version(subject, 1, permanent=True) == 1
    assert client.delete_subject(subject) == [2]
    assert client.delete_subject(subject, permanent=True) == [2]
    with pytest.raises(SchemaRegistryError) as gone:
        client.get_versions(subject)
    assert gone.value.error_code == 40401

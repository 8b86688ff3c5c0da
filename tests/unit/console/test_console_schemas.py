"""Values with schemas of a registry: bytes that other libraries wrote, and a server that speaks its API.

ORDER and LINE were written by protobuf's Python library from the schemas below, AVRO by fastavro.
"""

import base64
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from tidelog.console.decoding import decode, structure
from tidelog.console.record_filter import compile_filter
from tidelog.console.record_view import RecordView
from tidelog.console.schema_registry import RETRY_SECONDS, SchemaRegistry
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.protobuf_reader import read_indexes, read_message
from tidelog.schemas.protobuf_schema import parse

SHOP = """\
syntax = "proto3";
package shop.v1;  // comment
import "money.proto";
option java_package = "com.example";
/* block
   comment */
message Customer { string name = 1; }
message Order {
  option deprecated = false;
  reserved 40 to 50;
  enum State { option allow_alias = true; NEW = 0; PAID = 1; SETTLED = 1; REFUNDED = -3; }
  message Line { string sku = 1; sint32 change = 2; fixed64 weight = 3; repeated int32 sizes = 4; }
  int64 id = 1 [deprecated = true];
  State state = 2;
  repeated Line lines = 3;
  map<string, double> prices = 4;
  oneof payer { Customer customer = 5; bytes token = 6; }
  bool gift = 7;
  money.Amount total = 8;
  optional string message = 9;
  int32 debt = 10;
  repeated State history = 11;
  float ratio = 12;
}
service Orders { rpc Get (Customer) returns (Order) { option idempotency_level = NO_SIDE_EFFECTS; } }
"""
MONEY = """\
syntax = "proto3";
package money;
message Amount { string currency = 1; sint64 cents = 2; }
"""
ORDER = bytes.fromhex(
    "08fbffffffffffffffff0110011a1f0a03612d311011190000000000000080220d01ac02ffffffffffffffffff011a04"
    "0a02c3bc220e0a036575721100000000000023402a050a03416461380142080a0345555210c3134a0050f9ffffffffff"
    "ffffff015a0c0001fdffffffffffffffff01650000003f"
)
LINE = bytes.fromhex("0a05696e6e65721008")
AVRO = bytes.fromhex(
    "ffffffffff3f020e6772c3bcc39f6502020261020262000002066575720000000000002340000400ff6162636404fb1e"
    "88c002f4fbe4be826700010000003f06416461"
)

AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "next", "type": ["null", "Line"]},
                    ],
                },
            },
        },
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "raw", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "again", "type": "shop.State"},
        {"name": "ok", "type": "boolean"},
        {"name": "ratio", "type": "float"},
        {"name": "buyer", "type": "crm.Customer"},
    ],
}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "crm",
    "fields": [{"name": "name", "type": "string"}],
}
AVRO_VALUE = {
    "id": -(2**40),
    "note": "grüße",
    "state": "PAID",
    "lines": [{"sku": "a", "next": {"sku": "b", "next": None}}],
    "prices": {"eur": 9.5},
    "raw": "0x00ff",
    "hash": "0x61626364",
    "total": "-12.50",
    "day": "2026-01-31",
    "at": "2026-01-31T12:00:00.250000Z",
    "again": "NEW",
    "ok": True,
    "ratio": 0.5,
    "buyer": {"name": "Ada"},
}
ORDER_VALUE = {
    "id": -5,
    "state": "PAID",
    "lines": [
        {"sku": "a-1", "change": -9, "weight": 2**63, "sizes": [1, 300, -1]},
        {"sku": "ü"},
    ],
    "prices": {"eur": 9.5},
    "customer": {"name": "Ada"},
    "gift": True,
    "total": {"currency": "EUR", "cents": -1250},
    "message": "",
    "debt": -7,
    "history": ["NEW", "PAID", "REFUNDED"],
    "ratio": 0.5,
}
AVRO_ID, JSON_ID, PROTOBUF_ID, ODD_ID, BROKEN_ID, MOVED_ID, HUGE_ID = range(1, 8)


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


class RegistryHandler(BaseHTTPRequestHandler):
    """The two questions of the registry's documented API that a reader asks, behind a password."""

    asked: ClassVar[list[str]] = []
    schemas: ClassVar[dict[str, Any]] = {
        f"/schemas/ids/{AVRO_ID}": {
            "schema": json.dumps(AVRO_SCHEMA),
            "references": [{"name": "crm.Customer", "subject": "crm/customer", "version": 3}],
        },
        "/subjects/crm%2Fcustomer/versions/3": {
            "subject": "crm/customer",
            "id": 90,
            "version": 3,
            "schema": json.dumps(CUSTOMER),
        },
        f"/schemas/ids/{JSON_ID}": {"schemaType": "JSON", "schema": '{"type": "object"}'},
        f"/schemas/ids/{PROTOBUF_ID}": {
            "schemaType": "PROTOBUF",
            "schema": SHOP,
            "references": [{"name": "money.proto", "subject": "money", "version": 1}],
        },
        "/subjects/money/versions/1": {"subject": "money", "id": 91, "version": 1, "schema": MONEY},
        f"/schemas/ids/{ODD_ID}": {"schemaType": "THRIFT", "schema": "struct"},
        f"/schemas/ids/{BROKEN_ID}": {"schemaType": "PROTOBUF", "schema": "message {"},
        f"/schemas/ids/{HUGE_ID}": {"schema": "x" * (3 << 20)},
    }

    def do_GET(self) -> None:
        self.asked.append(self.path)
        wanted = "Basic " + base64.b64encode(b"reader:s3cret").decode()
        if self.headers.get("authorization") != wanted:
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        elif self.path == f"/schemas/ids/{MOVED_ID}":
            self.send_response(302)
            self.send_header("location", f"/schemas/ids/{JSON_ID}")
            self.end_headers()
        elif self.path in self.schemas:
            self._answer(200, self.schemas[self.path])
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the tests look at `asked`."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def registry(address: str) -> SchemaRegistry:
    RegistryHandler.asked.clear()
    return SchemaRegistry(f"http://reader:s3cret@{address}/")


def test_avro_with_a_reference(registry: SchemaRegistry) -> None:
    found = registry.decode(framed(AVRO_ID, AVRO))
    assert found == (AVRO_ID, "avro", AVRO_VALUE, "")
    shown = decode(framed(AVRO_ID, AVRO), schemas=registry)
    assert (shown.format, shown.note) == ("avro", "schema 1")
    assert json.loads(shown.text) == AVRO_VALUE
    assert RegistryHandler.asked == ["/schemas/ids/1", "/subjects/crm%2Fcustomer/versions/3"]


def test_protobuf_with_an_import_and_a_nested_message(registry: SchemaRegistry) -> None:
    # The second message of the file: one index, 1, as zigzag numbers.
    shown = decode(framed(PROTOBUF_ID, b"\x02\x02" + ORDER), "schema", schemas=registry)
    assert shown.format == "protobuf"
    assert json.loads(shown.text) == ORDER_VALUE
    inner = registry.decode(framed(PROTOBUF_ID, b"\x04\x02\x00" + LINE))
    assert inner is not None and inner.value == {"sku": "inner", "change": 4}
    first = registry.decode(framed(PROTOBUF_ID, b"\x00" + b"\x0a\x03Ada"))
    assert first is not None and first.value == {"name": "Ada"}
    absent = registry.decode(framed(PROTOBUF_ID, b"\x02\x08" + ORDER))
    assert absent is not None and "no message 4" in absent.fault


def test_json_schema_and_filters_on_fields(registry: SchemaRegistry) -> None:
    shown = decode(framed(JSON_ID, b'{"a": [1]}'), schemas=registry)
    assert (shown.format, shown.text) == ("json-schema", '{"a": [1]}')
    predicate = compile_filter('value.buyer.name == "Ada" and value.total startswith "-"', registry)
    assert predicate is not None
    record = RecordView("t", 0, 0, 0, "CreateTime", None, framed(AVRO_ID, AVRO), ())
    assert predicate(record)
    assert structure(framed(AVRO_ID, AVRO), registry)["lines"][0]["sku"] == "a"


@pytest.mark.parametrize(
    ("schema_id", "words"),
    [
        (99, "does not know it"),
        (ODD_ID, "THRIFT"),
        (BROKEN_ID, "the registry"),
        (MOVED_ID, "302"),
        (HUGE_ID, "too large"),
    ],
)
def test_what_cannot_be_decoded_is_shown_as_hex_and_told(
    registry: SchemaRegistry, schema_id: int, words: str
) -> None:
    shown = decode(framed(schema_id, b"\x01\x02"), schemas=registry)
    assert shown.format == "hex" and words in shown.note
    # Asked for once, however many records have it.
    decode(framed(schema_id, b"\x01"), schemas=registry)
    assert RegistryHandler.asked == [f"/schemas/ids/{schema_id}"]


def test_a_registry_that_is_away_is_asked_again_later(address: str) -> None:
    now = [0.0]
    away = SchemaRegistry("http://127.0.0.1:1", clock=lambda: now[0])
    assert "refused" in decode(framed(1, b"x\x00"), schemas=away).note
    unauthorized = SchemaRegistry(f"http://{address}", "reader:wrong", clock=lambda: now[0])
    RegistryHandler.asked.clear()
    for _ in range(3):
        assert "(401)" in decode(framed(JSON_ID, b"{}\x00"), schemas=unauthorized).note
    assert len(RegistryHandler.asked) == 1
    now[0] += RETRY_SECONDS + 1
    decode(framed(JSON_ID, b"{}\x00"), schemas=unauthorized)
    assert len(RegistryHandler.asked) == 2


def test_secrets_are_not_shown(registry: SchemaRegistry) -> None:
    assert "s3cret" not in repr(registry) and "127.0.0.1" in repr(registry)
    for address in ("localhost:8081", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="http://localhost:8081"):
            SchemaRegistry(address)


def test_hostile_bytes_only_ever_raise_value_error() -> None:
    rng = random.Random(20)
    avro = AvroSchema(AVRO_SCHEMA, [CUSTOMER])
    proto = parse(SHOP, [MONEY])
    order = proto.message_at([1])
    refused = 0
    for source in (AVRO, ORDER):
        for _ in range(3_000):
            data = bytearray(source[: rng.randint(0, len(source))])
            for _ in range(rng.randint(0, 4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                if source is AVRO:
                    avro.read(bytes(data))
                else:
                    indexes, position = read_indexes(b"\x02\x02" + bytes(data))
                    assert indexes == [1]
                    json.dumps(read_message(b"\x02\x02" + bytes(data), position, order, proto))
            except ValueError:
                refused += 1
    assert refused > 2_000


def test_counts_that_lie_make_nothing_large() -> None:
    lists = AvroSchema({"type": "array", "items": "null"})
    with pytest.raises(ValueError, match="too many"):
        lists.read(b"\xfe\xff\xff\xff\x0f")
    nested = AvroSchema({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]})
    with pytest.raises(ValueError, match="too deep"):
        nested.read(b"")


@pytest.mark.parametrize(
    "text", ["message", "message A { string }", "hello", 'message A { string a = "x"; }']
)
def test_what_is_no_proto_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)

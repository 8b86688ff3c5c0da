"""Records as rows: the columns of each writer's schema, made to fit a table, and what cannot be rows."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.arrow_stream import Columns
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.lake.column_types import DoNotMerge, conformed_table, merged_schema, plain_schema
from tidelog.pipelines.lake.partitioning import partition_fields
from tidelog.pipelines.lake.table_rows import DEAD, OWN, RECORD, DecodedRows, RecordRows, without
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.problems import Misplaced
from tidelog.schemas.encoding import Encoder
from tidelog.schemas.registered import AVRO, RegisteredSchema, RegisteredSchemas
from tidelog.schemas.registry_client import RegistryFault


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


ID = {"name": "id", "type": "int"}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
OLD = RegisteredSchema(1, AVRO, record(ID, {"name": "gone", "type": "string"}))
NEW = RegisteredSchema(
    2,
    AVRO,
    record(
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {**ID, "type": "long"},
        {"name": "nothing", "type": "null"},
    ),
)
TEXT = RegisteredSchema(3, AVRO, '"string"')
TAKEN = RegisteredSchema(4, AVRO, record({"name": "_offset", "type": "int"}))
CAPITALS = RegisteredSchema(5, AVRO, record(ID, {"name": "ID", "type": "int"}))
ALL = (OLD, NEW, TEXT, TAKEN, CAPITALS)


class Registry(RegisteredSchemas):
    def __init__(self) -> None:
        self.known = list(ALL)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        for one in self.known:
            if one.id == schema_id:
                return one
        raise RegistryFault(40403, "Schema not found")


def batch(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    rows = {
        "key": [b"k"] * count,
        "value": list(values),
        "topic": ["orders"] * count,
        "partition": [3] * count,
        "offset": list(range(70, 70 + count)),
        "timestamp": [moment] * count,
        "timestampType": [0] * count,
        "headers": [[{"key": "h", "value": b"1"}]] * count,
    }
    return pa.RecordBatch.from_pydict(rows, schema=Columns(headers=True).arrow_schema())


def rows_of(maker: Any, given: pa.RecordBatch) -> list[dict[str, Any]]:
    """All rows, with the columns of all."""
    pieces = [piece.rows for piece in maker.rows(given).pieces]
    schema = pa.schema([])
    for piece in pieces:
        schema = merged_schema(schema, plain_schema(piece.schema))
    table = pa.concat_tables([conformed_table(piece, schema) for piece in pieces])
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: row.get("_offset", row.get("offset", 0)))


def decoded() -> DecodedRows:
    return DecodedRows(Registry(), AVRO, None)


def test_rows_that_are_records() -> None:
    [first, second] = rows_of(RecordRows(), batch(b"v", None))
    assert list(first) == RECORD.names
    assert (first["value"], second["value"], second["offset"]) == (b"v", None, 71)
    assert first["headers"] == [{"key": "h", "value": b"1"}]


def test_each_value_has_the_columns_of_its_own_schema() -> None:
    old, new = Encoder(OLD).encode, Encoder(NEW).encode
    values = (
        old({"id": 1, "gone": "a"}),
        new({"id": 1 << 40, "lines": [{"sku": "x"}], "nothing": None}),
        None,
        old({"id": 2, "gone": ""}),
    )
    found = rows_of(decoded(), batch(*values))
    values_of = [{name: row[name] for name in row if name not in OWN.names} for row in found]
    assert values_of == [
        {"id": 1, "gone": "a", "lines": None},
        {"id": 1 << 40, "gone": None, "lines": [{"sku": "x"}]},
        {"id": None, "gone": None, "lines": None},
        {"id": 2, "gone": "", "lines": None},
    ]
    assert [row["_offset"] for row in found] == [70, 71, 72, 73]
    assert found[0]["_key"] == b"k" and found[2]["_headers"] == [{"key": "h", "value": b"1"}]


def test_a_value_that_is_no_record_is_a_column() -> None:
    assert rows_of(decoded(), batch(Encoder(TEXT).encode("x")))[0]["value"] == "x"


def test_what_cannot_be_rows_is_told_with_the_record() -> None:
    values = (
        b"x",
        Encoder(TAKEN).encode({"_offset": 1}),
        b"\0\0\0\0\x09",
        Encoder(CAPITALS).encode({"id": 1, "ID": 2}),
    )
    made = decoded().rows(batch(*values, b"\0\0\0\0\x01\xff"))
    assert made.pieces == () and made.dead is not None and made.dead.schema == DEAD
    assert made.dead.column("value").to_pylist()[:2] == list(values[:2])
    assert made.dead.column("offset").to_pylist() == [70, 71, 72, 73, 74]
    assert made.dead.column("reason").to_pylist() == [
        "it is not framed with a schema id",
        "schema 4: its field _offset has the name of a column of the record itself",
        "the registry does not know schema 9",
        "schema 5: two of its fields are called id, but for capitals, which readers may ignore",
        "schema 1: the value is cut off",
    ]


def test_an_id_that_the_registry_learns_is_asked_for_again() -> None:
    registry = Registry()
    maker = DecodedRows(registry, AVRO, None)
    later = RegisteredSchema(9, AVRO, record(ID))
    value = Encoder(later).encode({"id": 1})
    assert maker.rows(batch(value)).dead is not None
    registry.known.append(later)
    assert rows_of(maker, batch(value))[0]["id"] == 1


def test_records_that_are_left_out() -> None:
    given = batch(b"a", b"b", b"c")
    left = without(given, {TopicPartition("orders", 3): {71}, TopicPartition("orders", 4): {70}})
    assert left.column("value").to_pylist() == [b"a", b"c"]
    assert without(given, {TopicPartition("orders", 4): {70}}) is given


def test_types_merge_as_iceberg_lets_columns_grow() -> None:
    table = pa.schema(
        [("a", pa.int64()), ("s", pa.struct([("x", pa.float32())])), ("m", pa.map_(pa.string(), pa.int32()))]
    )
    rows = pa.schema([("s", pa.struct([("y", pa.bool_()), ("x", pa.float64())])), ("a", pa.int32())])
    rows = rows.append(pa.field("m", pa.map_(pa.string(), pa.int64())))
    found = merged_schema(table, rows)
    assert found == pa.schema(
        [
            ("a", pa.int64()),
            ("s", pa.struct([("x", pa.float64()), ("y", pa.bool_())])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    values = pa.table(
        {"s": [{"x": 1.5}, None], "m": [[("k", 1)], None]}, schema=pa.schema([table.field(1), table.field(2)])
    )
    assert conformed_table(values.slice(0, 2), found).to_pylist() == [
        {"a": None, "s": {"x": 1.5, "y": None}, "m": [("k", 1)]},
        {"a": None, "s": None, "m": None},
    ]
    assert conformed_table(values.slice(1), found).to_pylist() == [{"a": None, "s": None, "m": None}]
    for one, other in (
        (pa.string(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
    ):
        with pytest.raises(DoNotMerge, match=r"^a is "):
            merged_schema(pa.schema([("a", one)]), pa.schema([("a", other)]))


def test_partition_specs() -> None:
    written = "day(_timestamp), bucket( 16 ,customer),truncate(4, note), country, hours(t)"
    for given in ([written], written.split(",")):
        found = partition_fields(given)
        assert [str(one) for one in found] == [
            "day(_timestamp)",
            "bucket(16, customer)",
            "truncate(4, note)",
            "country",
            "hour(t)",
        ]
        assert [one.name for one in found][:3] == ["_timestamp_day", "customer_bucket", "note_trunc"]
    for bad in ("bucket(x)", "week(t)", "day(4, t)", "a b", "day(", "bucket(0, x)", "a,,b"):
        with pytest.raises(BadOption, match="partition_by has columns"):
            partition_fields([bad])


def plan_of(**options: Any) -> Any:
    given = {"topic": "orders", "table": "lake.orders", "warehouse": "/w", **options}
    content = {"name": "p", "kind": "iceberg", "bootstrap": "localhost:1", "options": given}
    return make_plan(read_definition(content, stem="p"))


def test_a_plan_says_what_and_where() -> None:
    plan = plan_of(
        decode="avro", registry="http://r", registry_user_info="me:hidden", partition_by="day(_timestamp)"
    )
    words = plan.explain()
    assert "engine        local: this process" in words and "Spark" not in words
    assert "table lake.orders of SQLite in /w" in words and "dead letters  table lake.orders_dlq" in words
    assert "hidden" not in words + json.dumps(plan.as_json()) and plan.as_json()["engine"] == "local"
    secret = plan_of(catalog_options={"uri": "http://c", "s3.secret-access-key": "hidden", "token": "hidden"})
    assert "hidden" not in secret.explain() + json.dumps(secret.as_json())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"table": "orders"}, "a table is namespace.name"),
        ({"warehouse": None}, "needs a warehouse"),
        ({"warehouse": "s3://b/w"}, "needs a catalog elsewhere"),
        ({"decode": "avro"}, "decode needs the option registry"),
        ({"subject": "x"}, "subject goes with decode"),
        ({"decode": "avro", "registry": "http://r", "message": "M"}, "message is for decode: protobuf"),
        ({"partition_by": "week(t)"}, "partition_by has columns"),
        ({"batch_records": 0}, "batch_records is at least 1"),
        (
            {"source": {"decode": "avro", "schema.registry.url": "http://r"}},
            "decode is an option of the pipeline",
        ),
    ],
)
def test_a_plan_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        plan_of(**given)


def test_engines() -> None:
    content = {"kind": "iceberg", "engine": "spark", "options": {}}
    with pytest.raises(
        Misplaced, match="a pipeline of kind iceberg runs with engine: local, not 'spark'"
    ) as fault:
        read_definition(content, stem="p")
    assert fault.value.where == ("engine",)
    with pytest.raises(Misplaced, match="kind archive runs with engine: spark"):
        read_definition({"kind": "archive", "engine": "local"}, stem="p")

"""A table and its positions: commits that are true once, whoever else commits; upkeep."""

from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table

from tests.unit.pipelines.lake_tables import NAME, WHERE, catalog, commit, ids, make, rows
from tidelog.client.faults import BadOption
from tidelog.pipelines.lake import iceberg_table
from tidelog.pipelines.lake.catalogs import CatalogFault, CatalogOptions
from tidelog.pipelines.lake.column_types import DoNotMerge
from tidelog.pipelines.lake.iceberg_table import IcebergTable, OtherRun, SpecChanged
from tidelog.pipelines.lake.upkeep import UpkeepOptions, expire_snapshots, merge_small_files


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_table, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(iceberg_table, "ATTEMPTS_MAX", 4)


def found(folder: Path, pipeline: str = "p") -> IcebergTable:
    table = IcebergTable.find(catalog(folder), NAME, pipeline)
    assert table is not None
    return table


def position(table: IcebergTable) -> int | None:
    return None if table.position is None else table.position.offsets[WHERE]


def files(folder: Path, ending: str = "parquet") -> int:
    return len(list(folder.rglob(f"*.{ending}")))


def test_rows_and_position_are_one_commit(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert table.position is None
    commit(table, 0)
    commit(table, 2, 1, 2)
    assert position(found(tmp_path)) == 2 and ids(tmp_path) == [1, 2]
    assert found(tmp_path, "other").position is None


def test_somebody_elses_commits_are_built_upon(tmp_path: Path) -> None:
    table, other = make(tmp_path), make(tmp_path, "other")
    for number in range(3):
        commit(other, number, 100 + number)
        commit(table, number, number)
    assert ids(tmp_path) == [0, 1, 2, 100, 101, 102]
    assert (position(found(tmp_path)), position(found(tmp_path, "other"))) == (2, 2)


def test_another_run_of_the_pipeline_ends_this_one(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 0)
    commit(found(tmp_path), 2, 1, 2)
    with pytest.raises(OtherRun):
        commit(table, 2, 1, 2)
    assert ids(tmp_path) == [1, 2]
    assert files(tmp_path) == 1


def test_another_run_is_noticed_however_the_table_was_read_anew(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 0)
    commit(found(tmp_path), 2, 1, 2)
    table.table.refresh()
    with pytest.raises(OtherRun):
        commit(table, 2, 1, 2)


def test_a_rolled_back_table_ends_the_run_and_the_next_goes_on_from_there(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 0)
    commit(table, 2, 1, 2)
    first = table.table.metadata.current_snapshot_id
    commit(table, 3, 3)
    assert first is not None
    foreign = catalog(tmp_path).load_table(NAME)
    foreign.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(OtherRun):
        commit(table, 4, 4)
    again = found(tmp_path)
    assert position(again) == 2
    commit(again, 3, 3)
    assert ids(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("fault", [CommitStateUnknownException("504"), OSError("reset")])
def test_a_commit_whose_answer_is_lost_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    table = make(tmp_path)
    commit(table, 0)
    real = Table._do_commit
    lost: list[int] = []

    def answer_lost(*given: object, **named: object) -> None:
        real(*given, **named)  # type: ignore[arg-type]
        if not lost:
            lost.append(1)
            raise fault

    monkeypatch.setattr(Table, "_do_commit", answer_lost)
    commit(table, 2, 1, 2)
    assert lost and ids(tmp_path) == [1, 2] and position(found(tmp_path)) == 2
    commit(table, 3, 3)
    assert ids(tmp_path) == [1, 2, 3]


def test_a_catalog_that_stays_away_is_given_up_and_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path)
    commit(table, 0)
    with monkeypatch.context() as away:
        away.setattr(Table, "_do_commit", lambda *given, **named: (_ for _ in ()).throw(OSError("no route")))
        with pytest.raises(CatalogFault, match=r"lake.orders cannot be written: OSError: no route"):
            commit(table, 2, 1, 2)
    # Nobody knows whether it was done.
    assert files(tmp_path) == 1
    commit(found(tmp_path), 2, 1, 2)
    assert ids(tmp_path) == [1, 2]


def test_files_for_another_partition_spec_are_thrown_away(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 0)
    written = table.write(rows(1))
    with catalog(tmp_path).load_table(NAME).update_spec() as update:
        update.add_identity("note")
    commit(found(tmp_path, "other"), 0)
    with pytest.raises(SpecChanged):
        table.commit(written, "cluster", {WHERE: 1})
    assert files(tmp_path) == 0
    table.commit(table.write(rows(1, note="a")), "cluster", {WHERE: 1})
    assert ids(tmp_path) == [1]


def test_a_position_survives_snapshots_that_others_expire(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 7, 1)
    other = make(tmp_path, "other")
    commit(other, 1, 2)
    commit(other, 2, 3)
    everything = catalog(tmp_path).load_table(NAME)
    old = [one.snapshot_id for one in everything.metadata.snapshots[:-1]]
    everything.maintenance.expire_snapshots().by_ids(old).commit()
    assert position(found(tmp_path)) == 7


def test_columns_grow_whoever_else_adds_some(tmp_path: Path) -> None:
    table, other = make(tmp_path, columns=pa.schema([("id", pa.int32())])), make(tmp_path, "other")
    other.grow(pa.schema([("theirs", pa.bool_())]))
    nested = pa.struct([("a", pa.list_(pa.struct([("b", pa.decimal128(9, 2))])))])
    table.grow(pa.schema([("id", pa.int64()), ("n", nested)]))
    assert table.schema == pa.schema([("id", pa.int64()), ("theirs", pa.bool_()), ("n", nested)])
    with pytest.raises(
        DoNotMerge, match=r"n.a\[\].b is decimal128\(9, 2\) in the table and string in the record"
    ):
        table.grow(pa.schema([("n", pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]))]))


def test_partitions(tmp_path: Path) -> None:
    table = make(tmp_path, "p", "bucket(4", " id)", "note")
    assert [str(one) for one in table.table.spec().fields] == [
        "1000: id_bucket: bucket[4](1)",
        "1001: note: identity(2)",
    ]
    table.commit(table.write(pa.concat_tables([rows(1, 2), rows(3, note="x")])), "cluster", {WHERE: 3})
    assert ids(tmp_path) == [1, 2, 3] and {path.parent.name for path in tmp_path.rglob("*.parquet")} >= {
        "note=x"
    }


def test_a_table_with_required_columns_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    catalog(tmp_path).create_namespace("lake")
    catalog(tmp_path).create_table(NAME, schema)
    with pytest.raises(BadOption, match=r"column id of table lake\.orders is required"):
        found(tmp_path)


OPTIONS = UpkeepOptions(compact_files=4, file_bytes=1 << 20, expire_hours=1)


def test_small_files_are_merged(tmp_path: Path) -> None:
    table = make(tmp_path)
    for number in range(5):
        commit(table, number, number, number + 100)
    assert merge_small_files(table.table, OPTIONS) == 5
    assert len(list(table.table.scan().plan_files())) == 1
    assert len(ids(tmp_path)) == 10 and position(found(tmp_path)) == 4
    commit(table, 5, 5)
    assert merge_small_files(table.table, OPTIONS) == 0


def test_merging_gives_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path)
    for number in range(4):
        commit(table, number, number)
    real = Table._do_commit
    meanwhile = [lambda: commit(found(tmp_path, "other"), 0, 99)]

    def later(*given: object, **named: object) -> None:
        if meanwhile:
            meanwhile.pop()()
        real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "_do_commit", later)
    before = files(tmp_path)
    assert merge_small_files(table.table, OPTIONS) == 0
    assert ids(tmp_path) == [0, 1, 2, 3, 99] and files(tmp_path) == before + 1
    commit(table, 4, 4)
    assert merge_small_files(table.table, OPTIONS) == 6


def test_expired_snapshots_take_their_files_along(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(make(tmp_path, "other"), 3)
    for number in range(4):
        commit(table, number, number)
    merge_small_files(table.table, OPTIONS)
    assert files(tmp_path) == 5
    assert expire_snapshots(table.table, timedelta(0)) == 5
    assert (files(tmp_path), len(table.table.metadata.snapshots)) == (1, 1)
    commit(table, 4, 4)
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert (position(found(tmp_path)), position(found(tmp_path, "other"))) == (4, 3)
    assert expire_snapshots(table.table, timedelta(hours=1)) == 0


def test_another_engine_reads_the_same(tmp_path: Path) -> None:
    table = make(tmp_path)
    for number in range(4):
        commit(table, number, number)
    paths = [task.file.file_path.removeprefix("file://") for task in table.table.scan().plan_files()]
    assert sorted(duckdb.read_parquet(paths).project("id").fetchall()) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            CatalogOptions("c", options={"type": "rest", "uri": "http://x"}),
            {"type": "rest", "uri": "http://x"},
        ),
        (CatalogOptions("c"), {}),
        (
            CatalogOptions("c", "s3://b/w", {"uri": "sqlite:////c.db", "s3.endpoint": "http://s"}),
            {"warehouse": "s3://b/w", "uri": "sqlite:////c.db", "s3.endpoint": "http://s"},
        ),
    ],
)
def test_other_catalogs_get_what_was_written(given: CatalogOptions, wanted: dict[str, str]) -> None:
    assert given.properties() == wanted


def test_a_warehouse_elsewhere_needs_a_catalog() -> None:
    with pytest.raises(BadOption, match="needs a catalog elsewhere"):
        CatalogOptions("c", "s3://bucket/lake").properties()


def keys(*given: int) -> pa.Array:
    return pa.array(given, pa.int64())


def test_rows_take_the_place_of_those_with_their_keys(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 3, 1, 2, 3)
    commit(table, 6, 4, 5, 6)
    before = files(tmp_path)
    table.replace(rows(2, 7, note="new"), keys(2, 3, 7, 99), "id", "cluster", {WHERE: 9})
    found_rows = catalog(tmp_path).load_table(NAME).scan().to_arrow().to_pylist()
    notes = {row["id"]: row["note"] for row in found_rows}
    assert notes == {1: None, 2: "new", 4: None, 5: None, 6: None, 7: "new"} and len(found_rows) == 6
    # One file was written anew, the other has none of the keys.
    assert files(tmp_path) == before + 2 and position(found(tmp_path)) == 9
    table.replace(rows(), keys(1000), "id", "cluster", {WHERE: 10})
    assert position(found(tmp_path)) == 10 and len(ids(tmp_path)) == 6


def test_replacing_is_planned_again_for_what_others_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path)
    commit(table, 3, 1, 2, 3)
    real = Table._do_commit
    meanwhile = [lambda: commit(found(tmp_path, "other"), 0, 2, 50)]

    def later(*given: object, **named: object) -> None:
        if meanwhile:
            meanwhile.pop()()
        real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "_do_commit", later)
    table.replace(rows(2, note="new"), keys(2), "id", "cluster", {WHERE: 4})
    assert ids(tmp_path) == [1, 2, 3, 50]


def test_another_run_may_not_replace(tmp_path: Path) -> None:
    table = make(tmp_path)
    commit(table, 1, 1)
    commit(found(tmp_path), 2, 2)
    with pytest.raises(OtherRun):
        table.replace(rows(9), keys(1), "id", "cluster", {WHERE: 2})
    assert ids(tmp_path) == [1, 2]

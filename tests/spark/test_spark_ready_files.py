"""file-source and file-sink on a real Spark, by content."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ready_runs import definition, received, run_ready, send, values, wait_for
from tidelog.client.faults import BadOption
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.planning import start as planning_start

MakeTopic = Callable[..., str]

pytestmark = pytest.mark.timeout(300)


def test_lines_of_json(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    target, inbox = make_topic(2), tmp_path / "inbox"
    inbox.mkdir()
    given = definition(
        bootstrap, tmp_path, "file-source", path=str(inbox), to=target, key="id", glob="*.json"
    )
    (inbox / "one.json").write_text("".join(f'{{"id": {n}, "ü": "ß"}}\n' for n in range(50)))
    (inbox / "other.log").write_text("not this\n")
    run_ready(spark, given)
    (inbox / "two.json").write_text("".join(f'{{"id": {n}}}\n' for n in range(50, 60)))
    run_ready(spark, given)
    found = received(bootstrap, target)
    assert sorted(int(message.key()) for message in found) == list(range(60))
    first = next(message for message in found if message.key() == b"0")
    assert first.value().decode() == '{"id": 0, "ü": "ß"}'
    assert dict(first.headers())["file"].endswith(b"/inbox/one.json")


def test_an_old_file_is_read_too(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    target, inbox = make_topic(1), tmp_path / "inbox"
    inbox.mkdir()
    given = definition(bootstrap, tmp_path, "file-source", path=str(inbox), to=target)
    (inbox / "new.json").write_text('{"id": 1}\n')
    run_ready(spark, given)
    (inbox / "old.json").write_text('{"id": 2}\n')
    month_ago = time.time() - 30 * 86_400
    os.utime(inbox / "old.json", (month_ago, month_ago))
    run_ready(spark, given)
    assert [row["id"] for row in values(bootstrap, target)] == [1, 2]


def test_another_target_does_not_go_on_where_the_first_was(
    spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    first, second, inbox = make_topic(1), make_topic(1), tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"id": 1}\n')

    def run(to: str, **more: Any) -> None:
        options = {"path": str(inbox), "to": to, **more}
        given = definition(bootstrap, tmp_path, "file-source", **options)
        plan = make_plan(read_definition({**given, "trigger": "available_now"}, stem="inbox"))
        wait_for(planning_start(spark, plan))

    run(first)
    with pytest.raises(BadOption, match="begun with another to,"):
        run(second)
    (inbox / "b.json").write_text('{"id": 2}\n')
    run(first, files_per_batch=3)
    assert [row["id"] for row in values(bootstrap, first)] == [1, 2]
    assert values(bootstrap, second) == []


def test_csv_that_is_moved_away(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    target, inbox = make_topic(1), tmp_path / "inbox"
    inbox.mkdir()
    given = definition(
        bootstrap,
        tmp_path,
        "file-source",
        path=str(inbox),
        to=target,
        format="csv",
        schema="id INT, name STRING",
        key="id",
        read={"header": "true"},
        when_done="delete",
    )
    for number in range(3):
        (inbox / f"{number}.csv").write_text(f"id,name\n{number},n{number}\n")
        run_ready(spark, given)
    assert values(bootstrap, target) == [{"id": number, "name": f"n{number}"} for number in range(3)]
    # A file goes when the batch after it is complete.
    assert not (inbox / "0.csv").exists()


def test_parquet_both_ways(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic, back, dead = make_topic(2), make_topic(1), make_topic(1)
    records: list[dict[str, Any]] = [
        {"value": {"id": n, "country": "DE" if n % 2 else "FR"}} for n in range(100)
    ]
    send(bootstrap, topic, [*records, {"value": "[1]"}])
    out = tmp_path / "out"
    sink = definition(
        bootstrap,
        tmp_path / "sink",
        "file-sink",
        dead,
        topic=topic,
        path=str(out),
        format="parquet",
        schema="id INT, country STRING",
        partition_by="country",
    )
    run_ready(spark, sink)
    send(bootstrap, topic, [{"value": {"id": 100, "country": "IT"}}])
    run_ready(spark, sink)
    rows = spark.read.parquet(str(out)).collect()
    assert sorted(row.id for row in rows) == list(range(101))
    assert {path.name for path in out.glob("country=*")} == {"country=DE", "country=FR", "country=IT"}
    assert [message.value() for message in received(bootstrap, dead)] == [b"[1]"]
    source = definition(
        bootstrap, tmp_path / "source", "file-source", path=str(out), to=back, format="parquet", key="id"
    )
    run_ready(spark, source)
    assert sorted(row["id"] for row in values(bootstrap, back)) == list(range(101))


def test_text_and_csv_out(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(1)
    send(bootstrap, topic, [{"value": {"id": n}} for n in range(10)])
    lines = definition(bootstrap, tmp_path / "t", "file-sink", topic=topic, path=str(tmp_path / "lines"))
    run_ready(spark, lines)
    found = [line for path in (tmp_path / "lines").glob("*.txt") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in found) == list(range(10))
    csv = definition(
        bootstrap,
        tmp_path / "c",
        "file-sink",
        topic=topic,
        path=str(tmp_path / "csv"),
        format="csv",
        schema="id INT",
        write={"header": "true"},
    )
    run_ready(spark, csv)
    (path,) = (tmp_path / "csv").glob("*.csv")
    assert path.read_text().splitlines() == ["id", *map(str, range(10))]

"""Pipelines whose progress and files are in an object store: `s3a://` against a server that speaks S3.

What is in the bucket is looked at with another client, Arrow's. Spark's settings are those of
docs/pipelines-files.md, which bring the jars from Maven Central.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from tests.spark.pipeline_process import run_to_end, run_with_kills
from tests.spark.ready_runs import received
from tests.spark.s3_server import IDENTITY, SECRET, S3Server
from tests.spark.test_spark_flows import make_out

COUNT = 3_000
PAGE = Path(__file__).parents[2] / "docs" / "pipelines-files.md"
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", IDENTITY)
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield running


def documented_settings(server: S3Server) -> dict[str, Any]:
    """What the page has a file say of Spark, with the address of this server."""
    (block,) = re.findall(
        rf"```yaml\n((?:(?!```).)*{re.escape(ENDPOINT)}.*?)```", PAGE.read_text(), re.DOTALL
    )
    settings = dict(YAML(typ="safe", pure=True).load(block)["spark"])
    assert ENDPOINT in settings
    return {**settings, ENDPOINT: f"http://{server.address}"}


def values_of(server: S3Server, folder: str) -> Counter[bytes]:
    """What any reader of the folder finds: files whose names do not say that they are not for readers."""
    found: Counter[bytes] = Counter()
    for key in server.keys(folder):
        if key.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in key.split("/")):
            rows = pq.read_table(f"{folder}/{key}", filesystem=server.files, columns=["value"])
            found.update(rows.column("value").to_pylist())
    return found


def pipeline(server: S3Server, bootstrap: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "bootstrap": bootstrap,
        "master": "local[2]",
        "trigger": "available_now",
        "checkpoint": f"s3a://bucket/checkpoints/{name}",
        "spark": {"spark.driver.memory": "1g", **documented_settings(server)},
        **more,
    }


def test_a_flow_to_files_and_a_topic_with_killed_drivers(
    server: S3Server,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic = make_topic(2)
    make_out(bootstrap, f"{topic}-out")
    fill(topic, range(COUNT), 2)
    flow = pipeline(
        server,
        bootstrap,
        "s3-flow",
        sources={"lines": {"topic": topic, "options": {"maxOffsetsPerTrigger": "1000"}}},
        steps=[{"name": "small", "sql": "SELECT key, value FROM lines"}],
        sinks=[
            {"from": "small", "topic": f"{topic}-out"},
            {"from": "small", "format": "parquet", "path": "s3a://bucket/files"},
        ],
    )
    run_with_kills(flow, tmp_path, kills=1, seed=3)
    expected = Counter(b"%d" % number for number in range(COUNT))
    assert Counter(one.value() for one in received(bootstrap, f"{topic}-out")) == expected
    assert values_of(server, "bucket/files") == expected
    # Progress is there, and nowhere else.
    assert any("/commits/" in key for key in server.keys("bucket/checkpoints/s3-flow"))
    assert not (tmp_path / "state" / "s3-flow" / "checkpoint").exists()
    # Nothing that a batch had decided is left over, and nothing that it had put aside.
    own = [key for key in server.keys("bucket/files/_tidelog") if not key.endswith("last.json")]
    assert own == []
    # A run that finds nothing new writes nothing.
    run_to_end(flow, tmp_path)
    assert values_of(server, "bucket/files") == expected


def test_an_archive_is_merged_and_replayed(
    server: S3Server,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, again = make_topic(2), f"{make_topic(1)}-again"
    fill(topic, range(COUNT), 2)
    archive = {"topic": topic, "path": "s3a://bucket/archive", "batch_records": 1_000, "compact_files": 4}
    run_to_end(pipeline(server, bootstrap, "s3-archive", kind="archive", options=archive), tmp_path)
    expected = Counter(b"%d" % number for number in range(COUNT))
    assert values_of(server, "bucket/archive") == expected
    files = [key for key in server.keys("bucket/archive") if key.endswith(".parquet")]
    assert len(files) < 6, f"three batches of two files, merged: {files}"
    replay = {"path": "s3a://bucket/archive", "to": again}
    run_to_end(pipeline(server, bootstrap, "s3-replay", kind="replay", options=replay), tmp_path)
    found = received(bootstrap, again)
    assert Counter(one.value() for one in found) == expected
    assert {one.partition() for one in found} == {0, 1}
    assert [one.value() for one in found if one.partition() == 1] == [b"%d" % n for n in range(1, COUNT, 2)]

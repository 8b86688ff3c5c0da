"""`tidelog pipeline run` on a Spark standalone cluster whose executors have nothing but a bare Python.

One master, two workers. Nothing is shipped by hand: a flow with Python functions, one of which imports a file
beside it, and a ready pipeline, both started by the command line, by content.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.ready_runs import values
from tests.spark.spark_standalone import SparkStandalone

COUNT = 400
RUN_SECONDS_MAX = 400.0

pytestmark = pytest.mark.timeout(900)

#: a function of records, one of frames whose own function runs on executors, and a file that both import
STEPS = """
import sys

import prices


def priced(record):
    return {"id": record["id"], "price": prices.of(record["id"]), "python": sys.executable}


def marked(frame):
    from pyspark.sql import functions as sql

    return frame.withColumn("even", sql.udf(lambda number: prices.is_even(number), "boolean")("id"))
"""
PRICES = """
def of(number):
    return number * 3


def is_even(number):
    return number % 2 == 0
"""


@pytest.fixture(scope="module")
def standalone() -> Iterator[SparkStandalone]:
    with SparkStandalone(workers=2) as cluster:
        yield cluster


def run_on(cluster: SparkStandalone, folder: Path, *arguments: str) -> str:
    """Run a pipeline until it ends; what it said."""
    ours = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {
        "TIDELOG_PIPELINES": str(folder),
        # The only thing that cannot be guessed: these workers have a Python of their own.
        "PYSPARK_PYTHON": str(cluster.bare_python),
    }
    command = [sys.executable, "-m", "tidelog.cli", "pipeline", "run", *arguments]
    command += ["--master", cluster.url, "--trigger", "available_now"]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS_MAX
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-4000:]}\n{cluster.log_text()[-2000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of both pipelines, with the archive that they ship."""
    return tmp_path_factory.mktemp("state")


def test_a_flow_and_a_ready_pipeline(
    standalone: SparkStandalone,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    state: Path,
    tmp_path: Path,
) -> None:
    topic, out = make_topic(2), make_topic(2)
    fill(topic, range(COUNT), 2)
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "prices.py").write_text(PRICES)
    flow = {
        "bootstrap": bootstrap,
        "sources": {"numbers": {"topic": topic, "decode": "text"}},
        "steps": [
            {"name": "ids", "sql": "SELECT CAST(value AS INT) AS id FROM numbers"},
            {
                "name": "priced",
                "each": "steps.py:priced",
                "schema": "id INT, price INT, python STRING",
            },
            {"name": "marked", "python": "steps.py:marked"},
        ],
        "sinks": [{"topic": out, "key": "id"}],
    }
    file = tmp_path / "prices-flow.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(flow))
    said = run_on(standalone, state, str(file))
    assert f"Spark runs on the machines of {standalone.url}" in said
    assert f"must reach the checkpoint {state}/prices-flow/checkpoint" in said
    rows = sorted(values(bootstrap, out), key=lambda row: row["id"])
    assert [(row["id"], row["price"], row["even"]) for row in rows] == [
        (number, number * 3, number % 2 == 0) for number in range(COUNT)
    ]
    # The functions ran there, in a Python without packages.
    assert {row["python"] for row in rows} == {str(standalone.bare_python)}

    files = tmp_path / "files"
    run_on(standalone, state, "archive", "-o", f"topic={topic}", "-o", f"path={files}", "-b", bootstrap)
    assert len(list((state / "executors").iterdir())) == 1
    kept = [path for path in files.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    archived = [row["value"] for path in kept for row in pq.ParquetFile(path).read(["value"]).to_pylist()]
    assert sorted(archived, key=int) == [b"%d" % number for number in range(COUNT)]

"""`format("tidelog")` through Spark Connect: the client has no JVM, the server has Tidelog.

The server is a process of its own, and so is each client. docs/pipelines.md has the table of what works.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.ready_runs import committed, received
from tidelog.testing.ports import ReservedPort

COUNT = 1_000
START_SECONDS_MAX, RUN_SECONDS_MAX = 240.0, 300.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a Connect server of this test listens."""
    folder = tmp_path_factory.mktemp("connect")
    port = ReservedPort()
    settings = {
        "spark.connect.grpc.binding.port": str(port.port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while "Spark Connect server started" not in (said := (folder / "log").read_text()):
            assert process.poll() is None and time.monotonic() < deadline, said[-4_000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port.port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        port.close()


def client(address: str, what: str, **given: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.spark.connect_client", address, what, json.dumps(given)]
    # A client with a JVM would be no client of Connect.
    environment = {**os.environ, "JAVA_HOME": "/nowhere"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, env=environment, check=False
    )


def answer(address: str, what: str, **given: Any) -> Any:
    done = client(address, what, **given)
    assert done.returncode == 0, done.stderr[-6_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_batches(
    address: str, bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None]
) -> None:
    topic, out = make_topic(2), make_topic(1)
    fill(topic, range(COUNT), 2)
    found = answer(address, "batches", bootstrap=bootstrap, topic=topic, out=out)
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert found == {"columns": columns, "count": COUNT, "some": ["0", "1", "2", "3"]}
    assert sorted(int(one.value()) for one in received(bootstrap, out)) == list(range(900, COUNT))


def test_a_stream_exactly_once(
    address: str,
    bootstrap: str,
    admin: Any,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, out = make_topic(2), make_topic(1)
    fill(topic, range(COUNT), 2)
    given = {"bootstrap": bootstrap, "topic": topic, "out": out, "checkpoint": str(tmp_path / "c")}
    answer(address, "stream", **given)
    batches = [one for one in (tmp_path / "c" / "commits").iterdir() if one.name.isdigit()]
    assert len(batches) == 3, "400 records in a micro-batch, and nothing for the second start"
    assert Counter(one.value() for one in received(bootstrap, out)) == Counter(
        b"%d" % number for number in range(COUNT)
    )
    metadata = json.loads((tmp_path / "c" / "metadata").read_text().splitlines()[-1])
    assert sum(committed(admin, f"tidelog-spark-{metadata['id']}", topic, 2)) == COUNT, "its lag is seen"


def test_changing_results_exactly_once(
    address: str, bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None], tmp_path: Path
) -> None:
    """A batch that is done again, for Spark did not note it, and a batch after it."""
    topic, out = make_topic(2), make_topic(1)
    checkpoint = tmp_path / "checkpoint"
    given = {"bootstrap": bootstrap, "topic": topic, "out": out, "checkpoint": str(checkpoint)}
    fill(topic, range(COUNT), 2)
    answer(address, "states", **given, name="rests")
    first = [(b"0", b"334"), (b"1", b"333"), (b"2", b"333")]
    assert sorted((one.key(), one.value()) for one in received(bootstrap, out)) == first
    for path in (checkpoint / "commits").iterdir():
        if path.name.strip(".").startswith("0"):
            path.unlink()
    answer(address, "states", **given, name="rests")
    assert [one.name for one in (checkpoint / "commits").iterdir() if one.name.isdigit()] == ["0"]
    assert sorted((one.key(), one.value()) for one in received(bootstrap, out)) == first
    fill(topic, range(2), 2)
    answer(address, "states", **given, name="rests")
    assert sorted((one.key(), one.value()) for one in received(bootstrap, out)) == sorted(
        [*first, (b"0", b"335"), (b"1", b"334")]
    )


def test_changing_results_without_a_name_are_refused(
    address: str, bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None], tmp_path: Path
) -> None:
    topic, out = make_topic(2), make_topic(1)
    fill(topic, range(COUNT), 2)
    given = {"bootstrap": bootstrap, "topic": topic, "out": out}
    nameless = client(address, "states", **given, checkpoint=str(tmp_path / "checkpoint"))
    assert nameless.returncode != 0 and "txnAppId" in nameless.stderr
    assert received(bootstrap, out) == []

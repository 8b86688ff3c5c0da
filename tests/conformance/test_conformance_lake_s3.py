"""Iceberg tables in a bucket of a real S3 server: TIDELOG_S3_TESTS=1 (`make s3-test`, which installs moto).

TIDELOG_S3_SERVER names another program that takes `-H address -p port`, as moto_server does.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker
from tests.conformance.test_conformance_cli import Cli, cli
from tidelog.pipelines.lake.catalogs import CatalogOptions

__all__ = ["cli"]

pytestmark = pytest.mark.skipif(
    os.environ.get("TIDELOG_S3_TESTS") != "1", reason="TIDELOG_S3_TESTS=1 runs them: make s3-test"
)
ROOT = Path(__file__).resolve().parents[2]
SERVER = os.environ.get("TIDELOG_S3_SERVER", str(ROOT / ".venv" / "s3-server" / "bin" / "moto_server"))
START_SECONDS_MAX = 60.0
SECRET = "not-to-be-shown"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            request = urllib.request.Request(f"{address}/lake-bucket", method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=5):
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait(10)


def test_a_table_in_a_bucket(
    cli: Cli,
    bootstrap: str,
    make_topic: TopicMaker,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDELOG_PIPELINES", str(tmp_path / "state"))
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap})
    catalog = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "s3.endpoint": endpoint,
        "s3.access-key-id": "tidelog",
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }
    options: dict[str, Any] = {
        "topic": topic,
        "table": "lake.orders",
        "warehouse": "s3://lake-bucket/tables",
        "catalog_options": catalog,
        "partition_by": ["partition"],
        "batch_records": 100,
        "compact_files": 3,
    }
    path = tmp_path / "orders.yaml"
    path.write_text(json.dumps({"kind": "iceberg", "trigger": "available_now", "options": options}))
    for part in range(2):
        for number in range(part * 300, part * 300 + 300):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(DEADLINE_SECONDS) == 0
        ran = cli("pipeline", "run", str(path))
        assert SECRET not in ran.stdout + ran.stderr
    table = CatalogOptions("tidelog", options["warehouse"], catalog).open().load_table("lake.orders")
    found = sorted(int(value) for value in table.scan().to_arrow().column("value").to_pylist())
    assert found == list(range(600))
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert all(file.startswith("s3://lake-bucket/tables/") for file in files)
    appended = [
        one
        for one in table.metadata.snapshots
        if one.summary is not None and "tidelog.offsets" in one.summary.additional_properties
    ]
    assert len(files) < len(appended) * 2, "small files were merged"

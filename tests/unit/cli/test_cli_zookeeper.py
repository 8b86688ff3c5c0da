"""`tidelog zookeeper start` as a person runs it: until Ctrl-C, and with nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import tidelog
from tidelog.server.zookeeper_process import ZookeeperError, find_jars, find_java

pytestmark = pytest.mark.xdist_group("zookeeper-ensemble")


def test_it_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    try:
        find_jars()
        find_java()
    except ZookeeperError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}; {error.hint}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "zookeeper", "start", "--port", str(port), "--data", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"ZooKeeper is ready at 127.0.0.1:{port}\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"ruok")
            assert connection.recv(4) == b"imok"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith("ZooKeeper stopped cleanly.\n")
        assert process.wait(20) == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
    finally:
        process.kill()
        process.wait()


def test_missing_jars_are_explained(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        tidelog, ["zookeeper", "start", "--jars", str(tmp_path), "--data", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert "ZooKeeper's jars" in result.output
    assert "tests/conformance/setup" in result.output

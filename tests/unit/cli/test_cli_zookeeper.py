"""`tidelog zookeeper start` as a person runs it: until Ctrl-C, and with nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import tidelog
from tidelog.server.zookeeper_process import ZookeeperError, find_jars, find_java

pytestmark = pytest.mark.xdist_group("zookeeper-ensemble")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
        return free


@pytest.fixture
def command(tmp_path: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    """The command, run by the shell's means; skipped without Java or the jars (fails in CI)."""
    try:
        find_jars()
        find_java()
    except ZookeeperError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}; {error.hint}")
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "zookeeper", "start", "--port", str(port), "--data", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_it_runs_until_it_is_told_to_stop(command: "subprocess.Popen[str]", port: int) -> None:
    assert command.stdout is not None
    assert command.stdout.readline() == f"ZooKeeper is ready at 127.0.0.1:{port}\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"ruok")
        assert connection.recv(4) == b"imok"
    command.send_signal(signal.SIGINT)
    assert command.stdout.read().endswith("ZooKeeper stopped cleanly.\n")
    assert command.wait(20) == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_killed_command_leaves_no_server_behind(command: "subprocess.Popen[str]", port: int) -> None:
    assert command.stdout is not None
    assert "ready" in command.stdout.readline()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        command.kill()
        # The server's end of the connection goes with the server, one way or the other.
        connection.settimeout(20)
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError as reset:
            assert reset.errno


def test_missing_jars_are_explained(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        tidelog, ["zookeeper", "start", "--jars", str(tmp_path), "--data", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert "ZooKeeper's jars" in result.output
    assert "tests/conformance/setup" in result.output

"""`tidelog up` where it cannot start: one sentence that says why, and the remedy; and on an IPv6 address."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from tidelog.cli.up_children import UpChild
from tidelog.cli.up_console import start_console
from tidelog.testing import RunningBroker

SECONDS_MAX = 60
COMMAND = (sys.executable, "-m", "tidelog.cli")


def up(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "up", "--port", "0", "--data", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("words", [(), ("--secure",)])
def test_a_folder_in_use_is_refused_with_one_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Also where the metadata of its broker lies elsewhere: nothing is written beside the logs."""
    folder = tmp_path / "logs"
    settings = {"tidelog.coordination.path": str(tmp_path / "elsewhere.sqlite")}
    with RunningBroker(data_directory=folder, settings=settings) as broker:
        broker.create_topic("t")
        before = names(folder)
        done = up(folder, *words)
        assert done.returncode == 1
        assert "is in use by another broker" in done.stderr and "Traceback" not in done.stderr
        assert names(folder) == before


def test_data_of_another_cluster_is_refused_with_one_sentence(tmp_path: Path) -> None:
    for number in ("one", "two"):
        with RunningBroker(
            data_directory=tmp_path / number,
            settings={"tidelog.coordination.path": str(tmp_path / f"{number}.sqlite")},
        ):
            pass
    done = up(tmp_path / "one", "--set", f"tidelog.coordination.path={tmp_path / 'two.sqlite'}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "cluster" in done.stderr


def test_no_new_cluster_begins_beside_the_data_of_one(tmp_path: Path) -> None:
    """The first log directory is away, and the metadata with it."""
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"tidelog.coordination.path": str(tmp_path / "away.sqlite")}
    with RunningBroker(data_directory=second, settings=settings) as broker:
        broker.create_topic("t")
    command = [*COMMAND, "up", "--port", "0", "--set", f"log.dirs={first},{second}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "mount the directory that is missing" in done.stderr and "metadata.sqlite" in done.stderr
    assert not first.exists() or names(first) == set()


def taken_port(stack: ExitStack) -> int:
    return int(stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])


def test_what_is_in_use_is_told_by_its_own_option(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = taken_port(stack)
        done = up(tmp_path / "one", "--metrics-port", str(port))
        assert done.returncode == 1
        assert f"cannot serve metrics on 127.0.0.1:{port}" in done.stderr and "--metrics-port" in done.stderr
        done = up(tmp_path / "two", "--port", str(port))
        assert done.returncode == 1 and "another --port" in done.stderr


def test_a_file_of_credentials_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("user:password\n")
    file.chmod(0o644)
    done = up(tmp_path / "data", "--metrics-port", "0", "--set", f"tidelog.metrics.credentials.file={file}")
    assert done.returncode == 1 and f"chmod 600 {file}" in done.stderr


def test_a_console_whose_port_is_taken_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        child = UpChild("console", taken_port(stack))
        context = stack.enter_context(click.Context(click.Command("up")))
        context.meta["tidelog.console"] = child
        start_console("127.0.0.1:9092", None, as_json=False)
        said = capsys.readouterr().out
    assert f"port {child.port} is in use: --console-port" in said and "http" not in said


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_told_in_brackets(tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--host", "::1", "--port", "0", "--data", str(tmp_path), "--json"]
    command += ["--metrics-port", "0", "--set", "tidelog.metrics.host=::1", "--console-port", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        assert ready["bootstrap"].startswith("[::1]:")
        assert ready["metrics"].startswith("http://[::1]:")
        told = [
            subprocess.run(
                [*COMMAND, *words, "--bootstrap", ready["bootstrap"]],
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=True,
            ).stdout
            for words in (
                ("topic", "create", "t"),
                ("cluster", "brokers"),
                ("txn", "list"),
                ("doctor", "--watch", "0"),
            )
        ]
        assert ready["bootstrap"] in told[1] and f"advertised: {ready['bootstrap']}" in told[3]
    finally:
        child.terminate()
        child.wait(SECONDS_MAX)
        assert child.stdout is not None
        child.stdout.close()

"""The real `tidelog` command as a child process against a real broker, as a person would use it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.drivers.contract import new_name

COMMAND_SECONDS_MAX = 60

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(bootstrap: str) -> Cli:
    def run(*words: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap},
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def topic(cli: Cli) -> Iterator[str]:
    name = new_name("cli")
    cli("topic", "create", name, "--partitions", "2", "--config", "retention.ms=3600000")
    yield name
    cli("topic", "delete", name, "--yes", "--if-exists")


def parsed(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_topic_life(cli: Cli) -> None:
    name = new_name("life")
    assert f"Created topic {name} with 3 partitions" in cli("topic", "create", name, "-p", "3").stdout
    assert "already" in cli("topic", "create", name, "--if-not-exists").stdout
    assert "TOPIC_ALREADY_EXISTS" in cli("topic", "create", name, code=1).stderr
    assert name in [row["name"] for row in parsed(cli("topic", "list", "--json"))]
    cli("topic", "alter", name, "--partitions", "4", "--set", "segment.bytes=1048576")
    (described,) = parsed(cli("topic", "describe", name, "--json"))
    assert len(described["partitions"]) == 4
    assert described["configs"] == {"segment.bytes": "1048576"}
    assert all(row["earliest"] == row["latest"] == row["size_bytes"] == 0 for row in described["partitions"])
    assert "INVALID_PARTITIONS" in cli("topic", "alter", name, "--partitions", "2", code=1).stderr
    cli("topic", "alter", name, "--unset", "segment.bytes")
    assert parsed(cli("topic", "describe", name, "--json"))[0]["configs"] == {}
    assert "add --yes" in cli("topic", "delete", name, code=1).stderr
    cli("topic", "delete", name, "--yes")
    assert name not in [row["name"] for row in parsed(cli("topic", "list", "--json"))]
    assert f"no topic {name}" in cli("topic", "describe", name, code=1).stderr


def test_refusals_are_explained(cli: Cli) -> None:
    assert "TOPIC_EXCEPTION" in cli("topic", "create", "bad/name", code=1).stderr
    assert "INVALID_CONFIG" in cli("topic", "create", new_name("x"), "-c", "no.such=1", code=1).stderr
    assert "INVALID_REPLICATION_FACTOR" in cli("topic", "create", new_name("x"), "-r", "9", code=1).stderr


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(cli: Cli, topic: str, codec: str) -> None:
    sent = cli(
        "produce", topic, "-K", ":", "-Z", "-H", "s=web", "-p", "1", "-z", codec, stdin="a:1\nb:\nplain\n"
    )
    assert "3 records acknowledged" in sent.stderr
    shown = cli("consume", topic, "-e", "-Z", "-f", r"%t %p %o %k %s %h %K %S\n").stdout
    assert shown.splitlines() == [
        f"{topic} 1 0 a 1 s=web 1 1",
        f"{topic} 1 1 b NULL s=web 1 -1",
        f"{topic} 1 2 NULL plain s=web -1 5",
    ]
    assert cli("consume", topic, "-e", "--from", "-1", "-p", "1").stdout == "plain\n"
    assert cli("consume", topic, "--from", "beginning", "-n", "1").stdout == "1\n"


def test_json_lines_copy_a_topic(cli: Cli, topic: str) -> None:
    lines = "".join(
        json.dumps(
            {
                "key": f"k{number}",
                "value": {"n": number},
                "headers": {"h": "x"},
                "timestamp_ms": 1000 + number,
            }
        )
        + "\n"
        for number in range(20)
    )
    cli("produce", topic, "--json", stdin=lines)
    first = cli("consume", topic, "-e", "--json").stdout
    copy = new_name("copy")
    cli("topic", "create", copy, "-p", "2")
    cli("produce", copy, "--json", stdin=first)
    second = cli("consume", copy, "-e", "--json").stdout

    def content(text: str) -> list[Any]:
        fields = ("partition", "offset", "key", "value", "headers", "timestamp_ms")
        return sorted([json.loads(line)[field] for field in fields[:4]] for line in text.splitlines())

    assert len(first.splitlines()) == 20 and content(first) == content(second)
    assert json.loads(second.splitlines()[0])["headers"] == [{"name": "h", "value": "x"}]
    cli("topic", "delete", copy, "--yes")


def test_bad_input_names_the_line(cli: Cli, topic: str) -> None:
    assert "line 2" in cli("produce", topic, "--json", stdin='{"value":"a"}\n{"key":1}\n', code=1).stderr


def test_offsets_by_time(cli: Cli, topic: str) -> None:
    lines = "".join(
        f'{{"value":"{n}","partition":0,"timestamp_ms":{1_700_000_000_000 + n}}}\n' for n in range(10)
    )
    cli("produce", topic, "--json", stdin=lines)
    rows = parsed(cli("offsets", topic, "--time", "@1700000000004", "--json"))
    assert [(row["earliest"], row["latest"], row["offset_at_time"]) for row in rows] == [
        (0, 10, 4),
        (0, 0, None),
    ]
    assert cli("consume", topic, "-e", "--from", "@1700000000008").stdout == "8\n9\n"


def test_settings(cli: Cli, topic: str) -> None:
    cli("config", "set", "topic", topic, "max.message.bytes=2000", "cleanup.policy=compact")
    lines = {line["name"]: line for line in parsed(cli("config", "describe", "topic", topic, "--json"))}
    assert lines["max.message.bytes"]["value"] == "2000"
    assert "INVALID_RECORD" in cli("produce", topic, stdin="no key\n", code=1).stderr
    cli("config", "unset", "topic", topic, "cleanup.policy")
    assert "MSG_SIZE_TOO_LARGE" in cli("produce", topic, stdin="x" * 5000, code=1).stderr
    assert "INVALID_CONFIG" in cli("config", "set", "topic", topic, "retention.ms=soon", code=1).stderr


def test_cluster_status(cli: Cli, bootstrap: str) -> None:
    status = parsed(cli("cluster", "status", "--json"))
    assert [f"{row['host']}:{row['port']}" for row in status["brokers"]] == [bootstrap]
    assert status["partitions_without_leader"] == 0 and status["cluster_id"]


def test_group_life(cli: Cli, topic: str, tmp_path: Path) -> None:
    group = new_name("group")
    cli("produce", topic, "-p", "0", stdin="".join(f"{n}\n" for n in range(10)))
    assert cli("consume", topic, "--group", group, "-n", "4").stdout == "0\n1\n2\n3\n"
    assert group in [row["group"] for row in parsed(cli("group", "list", "--json"))]
    assert [(row["committed"], row["lag"]) for row in parsed(cli("group", "lag", group, "--json"))] == [
        (4, 6)
    ]
    planned = parsed(cli("group", "reset-offsets", group, "--to-earliest", "--json"))
    assert planned["executed"] is False and planned["moves"][0]["new"] == 0
    assert parsed(cli("group", "lag", group, "--json"))[0]["committed"] == 4
    cli("group", "reset-offsets", group, "--shift-by", "-2", "--execute")
    saved = tmp_path / "offsets.csv"
    saved.write_text(cli("group", "reset-offsets", group, "--to-current", "--export").stdout)
    assert saved.read_text() == f"{topic},0,2\n"
    cli("group", "reset-offsets", group, "--to-latest", "--topic", topic, "--execute")
    assert sum(row["lag"] for row in parsed(cli("group", "lag", group, "--json"))) == 0
    cli("group", "reset-offsets", group, "--from-file", str(saved), "--execute")
    assert cli("consume", topic, "--group", group, "-n", "1").stdout == "2\n"
    cli("group", "delete-offsets", group, "--topic", f"{topic}:1", "--yes")
    assert [row["partition"] for row in parsed(cli("group", "lag", group, "--json"))] == [0]
    cli("group", "delete", group, "--yes")
    assert "no group" in cli("group", "describe", group, code=1).stderr


def test_bench_reports_numbers(cli: Cli, topic: str) -> None:
    report = parsed(cli("bench", "produce", topic, "--records", "2000", "--size", "50", "--json"))
    assert report["records"] == 2000 and report["p99_ms"] >= report["p50_ms"] > 0
    assert parsed(cli("bench", "consume", topic, "--json"))["records"] == 2000


def test_follow_ends_on_sigterm(cli: Cli, topic: str, bootstrap: str) -> None:
    follower = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "consume", topic, "--bootstrap", bootstrap],
        stdout=subprocess.PIPE,
        text=True,
    )
    # A hang would block readline below; the timer turns it into a failed assertion.
    watchdog = threading.Timer(COMMAND_SECONDS_MAX, follower.kill)
    watchdog.start()
    try:
        assert follower.stdout is not None
        for word in ("one", "two"):
            cli("produce", topic, stdin=word + "\n")
            assert follower.stdout.readline() == word + "\n"
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(COMMAND_SECONDS_MAX) == 0
    finally:
        watchdog.cancel()
        follower.kill()
        follower.communicate()


def test_a_reader_that_leaves_is_no_error(cli: Cli, topic: str, bootstrap: str) -> None:
    cli("produce", topic, stdin="".join(f"{n:0100d}\n" for n in range(5000)))
    follower = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "consume", topic, "--bootstrap", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert follower.stdout is not None and follower.stderr is not None
        assert len(follower.stdout.read(101)) == 101
        follower.stdout.close()
        assert follower.wait(COMMAND_SECONDS_MAX) == 0
        assert follower.stderr.read() == b""
    finally:
        follower.kill()
        follower.wait()
        follower.stderr.close()  # type: ignore[union-attr]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "up", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TIDELOG_SET_NUM_PARTITIONS": "3"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_up_is_ready_says_so_and_stops_cleanly(
    up: Callable[..., subprocess.Popen[str]], tmp_path: Path, signal_number: signal.Signals
) -> None:
    broker = up("--data", str(tmp_path / "data"), "--port", "0")
    assert broker.stdout is not None
    ready = broker.stdout.readline()
    assert "is ready at 127.0.0.1:" in ready
    address = ready.split(" ready at ")[1].split()[0]
    command = [sys.executable, "-m", "tidelog.cli", "topic", "create", "made", "--bootstrap", address]
    created = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)
    assert "with 3 partitions" in created.stdout, created.stderr
    taken = up("--data", str(tmp_path / "other"), "--port", address.rpartition(":")[2])
    _, complaint = taken.communicate(timeout=COMMAND_SECONDS_MAX)
    assert taken.returncode == 1 and "in use" in complaint.lower() and "--port" in complaint
    broker.send_signal(signal_number)
    rest, _ = broker.communicate(timeout=COMMAND_SECONDS_MAX)
    assert broker.returncode == 0 and rest.endswith("The broker stopped cleanly.\n")
    assert (tmp_path / "data" / "made-2").is_dir()


def test_log_dump_of_what_was_produced(up: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    broker = up("--data", str(tmp_path / "data"), "--port", "0")
    assert broker.stdout is not None
    address = broker.stdout.readline().split(" ready at ")[1].split()[0]
    command = [sys.executable, "-m", "tidelog.cli"]
    produce = [*command, "produce", "made", "--bootstrap", address, "-K", ":", "-p", "0"]
    subprocess.run(
        produce, input=b"ann:3 apples\n", timeout=COMMAND_SECONDS_MAX, check=True, capture_output=True
    )
    dumped = subprocess.run(
        [*command, "log", "dump", str(tmp_path / "data" / "made-0")],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
    )
    assert dumped.returncode == 0, dumped.stdout
    assert 'key "ann" (3 B)  value "3 apples" (8 B)' in dumped.stdout and "CRC ok" in dumped.stdout

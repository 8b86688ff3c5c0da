"""The test broker: thread and child process, restart, kill, options, and nothing left behind."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.testing import RunningBroker, TestBroker
from tidelog.testing.broker import BrokerNotStarted, Mode

pytest_plugins = ["pytester"]
MODES: list[Mode] = ["thread", "process"]
DEADLINE_SECONDS = 15.0


def accepts(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
def test_start_restart_stop(mode: Mode) -> None:
    with RunningBroker(mode=mode) as broker:
        address = broker.bootstrap
        assert broker.running and accepts(address)
        broker.create_topic("kept", partitions=2, retention_ms=60_000)
        assert (broker.data_directory / "kept-1").is_dir()
        broker.restart()
        assert broker.bootstrap == address and accepts(address)
        broker.stop()
        assert not broker.running and not accepts(address)
    assert not broker.data_directory.exists()


def test_data_directory_of_the_caller_is_kept(tmp_path: Path) -> None:
    with RunningBroker(data_directory=tmp_path) as broker:
        broker.create_topic("kept")
    assert (tmp_path / "kept-0").is_dir()


def test_kill_and_start_again() -> None:
    with RunningBroker(mode="process") as broker:
        first = broker.process_id
        broker.kill()
        assert not broker.running and not accepts(broker.bootstrap)
        broker.start()
        assert broker.process_id != first and accepts(broker.bootstrap)


def test_a_thread_cannot_be_killed() -> None:
    with RunningBroker() as broker, pytest.raises(RuntimeError, match="mode='process'"):
        broker.kill()


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(BrokerNotStarted, match=r"no\.such\.setting"):
        RunningBroker({"no.such.setting": "1"}, mode="process").start()


def test_the_child_ends_with_its_parent() -> None:
    program = (
        "import os, sys\nfrom tidelog.testing import RunningBroker\n"
        "broker = RunningBroker(mode='process').start()\n"
        "print(broker.process_id, broker.data_directory, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    words = parent.stdout.readline().split()
    child_id, folder = int(words[0]), words[1]
    child = os.pidfd_open(child_id)
    try:
        os.kill(parent.pid, signal.SIGKILL)
        parent.communicate(timeout=DEADLINE_SECONDS)
        ended, _, _ = select.select([child], [], [], DEADLINE_SECONDS)
    finally:
        os.close(child)
        shutil.rmtree(folder, ignore_errors=True)
    assert ended, "the broker outlived the process that started it"


def test_the_name_testbroker_is_not_collected() -> None:
    assert TestBroker is RunningBroker and RunningBroker.__test__ is False


def test_fixtures_options_and_marker(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntidelog_settings =\n    num.partitions=4\n")
    pytester.makepyfile(
        """
        import pytest

        def test_default(tidelog_broker):
            assert tidelog_broker.mode == "thread"
            assert tidelog_broker.settings["num.partitions"] == "4"

        @pytest.mark.tidelog(mode="process", num_partitions=2, auto_create_topics_enable=False)
        def test_marked(tidelog_broker):
            assert tidelog_broker.mode == "process"
            assert tidelog_broker.settings["num.partitions"] == "2"
            assert tidelog_broker.settings["auto.create.topics.enable"] == "false"

        def test_session_one(tidelog_broker_session):
            tidelog_broker_session.create_topic("shared")

        def test_session_two(tidelog_broker_session):
            assert (tidelog_broker_session.data_directory / "shared-0").is_dir()
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    outcome.assert_outcomes(passed=4)


def test_mode_on_the_command_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mode(tidelog_broker):\n    assert tidelog_broker.process_id is not None\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--tidelog-mode", "process").assert_outcomes(
        passed=1
    )


def test_bad_ini_is_explained(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntidelog_mode = cloud\n")
    pytester.makepyfile("def test_mode(tidelog_broker):\n    pass\n")
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    outcome.stdout.fnmatch_lines(["*tidelog_mode is 'cloud'*"])

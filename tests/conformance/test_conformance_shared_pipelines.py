"""A pipeline's lease in the cluster: one run has it; others see it, stop it, take it over, and it notices."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.admin.shared_pipelines import PLACE, SharedPipeline, SharedPipelines, shared_pipelines
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.pipeline_places import DIED, RUNNING, STOPPED
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import RecordWriter
from tidelog.client.transactional_writer import init_producer
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.running import AlreadyRunning
from tidelog.pipelines.shared_run import OtherMachine, SharedRun, transactional_id
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 20.0
LEASE_SECONDS = 1.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker({"transaction.state.log.num.partitions": "1"}) as broker:
        yield broker.bootstrap


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(ClientSettings.from_options({"bootstrap.servers": bootstrap})) as found:
        yield found


def status(name: str, state: str = RUNNING) -> dict[str, Any]:
    return {"name": name, "kind": "flow", "state": state, "progress": [], "updated_ms": 1}


Start = Callable[..., SharedRun]


@pytest.fixture
def start(bootstrap: str, tmp_path: Path) -> Start:
    def make(name: str, host: str, checkpoint: str = "s3a://team/totals", **more: Any) -> SharedRun:
        run = RunSettings(name, kafka={"kafka.bootstrap.servers": bootstrap}, checkpoint=checkpoint)
        more = {"lease_seconds": LEASE_SECONDS, **more}
        return SharedRun(run, tmp_path / host, status(name), host=host, **more)

    return make


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_team_sees_it_and_stops_it_from_anywhere(start: Start, cluster: Cluster) -> None:
    assert [one.name for one in shared_pipelines(cluster)] == []
    with start("totals", "north") as run:
        (seen,) = shared_pipelines(cluster)
        assert (seen.name, seen.host, seen.status["state"]) == ("totals", "north", RUNNING)
        run.tell({**status("totals"), "progress": [{"name": "flow", "rows": 5}]})
        wait_until(lambda: shared_pipelines(cluster)[0].status["progress"])
        assert not run.stop_asked()
        SharedPipelines(cluster).ask_to_stop(seen, "south")
        wait_until(run.stop_asked)
        run.tell(status("totals", STOPPED))
    (seen,) = shared_pipelines(cluster)
    assert seen.seen(time.time() * 1000)["state"] == STOPPED
    with start("totals", "south") as again:
        time.sleep(2 * LEASE_SECONDS / 5)
        assert not again.stop_asked(), "an old question is not for a new run"


def test_nobody_takes_it_from_a_run_that_is_alive(start: Start) -> None:
    waited: list[SharedPipeline] = []
    with start("alive", "north") as run:
        late = start("alive", "south", on_waiting=waited.append)
        with pytest.raises(AlreadyRunning, match=r"running on north.*--shared"), late:
            pass
        assert [one.host for one in waited] == ["north"]
        time.sleep(LEASE_SECONDS)
        assert run.taken_over() is None


def test_a_run_that_fell_silent_is_taken_over_and_notices(
    start: Start, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start("lost", "north")
    silent = {"is": False}
    beat_once = old._beat_once

    def beat() -> None:
        if not silent["is"]:
            beat_once()

    monkeypatch.setattr(old, "_beat_once", beat)
    with old:
        silent["is"] = True
        assert old.taken_over() is None
        with start("lost", "south") as new:
            assert shared_pipelines(cluster)[-1].host != "north" or new.taken_over() is None
            silent["is"] = False
            wait_until(lambda: old.taken_over() == "south")
            time.sleep(LEASE_SECONDS)
            assert new.taken_over() is None
            found = {one.name: one for one in shared_pipelines(cluster)}["lost"]
            assert found.host == "south"
    # A lost run's last word does not cover the new one's.
    assert {one.name: one for one in shared_pipelines(cluster)}["lost"].host == "south"


def test_a_run_whose_transaction_timed_out_takes_its_id_again(start: Start, cluster: Cluster) -> None:
    with start("slow", "north") as run:
        init_producer(cluster, transactional_id("slow"))
        first = {one.name: one for one in shared_pipelines(cluster)}["slow"].offset
        wait_until(lambda: {one.name: one for one in shared_pipelines(cluster)}["slow"].offset > first)
        assert run.taken_over() is None


def test_at_its_own_place_a_dead_run_is_not_waited_for(start: Start, cluster: Cluster) -> None:
    with start("again", "north"):
        pass  # it never said that it has ended
    (found,) = (one for one in shared_pipelines(cluster) if one.name == "again")
    assert found.is_alive
    assert found.seen(found.told_ms + 500)["state"] == RUNNING
    assert found.seen(found.told_ms + 60_000)["state"] == DIED

    def fail(before: object) -> None:
        raise AssertionError(before)

    with start("again", "north", on_waiting=fail):
        pass


def test_progress_of_another_machine_is_not_begun_anew(start: Start, tmp_path: Path) -> None:
    far = str(tmp_path / "far" / "checkpoint")
    with start("local", "north", far) as run:
        run.tell(status("local", STOPPED))
    with pytest.raises(OtherMachine, match="on north, which is not here"), start("local", "south", far):
        pass
    with start("local", "north", far):
        pass
    with start("local", "south", "s3a://team/local"):
        pass
    Path(far).mkdir(parents=True)
    with start("local", "north", far) as run:
        run.tell(status("local", STOPPED))
    with start("local", "south", far):
        pass  # a folder that both have


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b"[" * 50_000, b'{"run": 1, "status": {"name": "other"}}', b"\xff"]
)
def test_what_others_write_there_is_passed_over(start: Start, cluster: Cluster, value: bytes) -> None:
    with start("honest", "north") as run:
        run.tell(status("honest", STOPPED))
    before = {one.name for one in shared_pipelines(cluster)}
    writer = RecordWriter(cluster, None)
    records = [Record(0, 1, key, value) for key in (b"odd", b"odd/stop", b"\xff")]
    writer.send(BatchToSend(*PLACE, build_batch(records)))
    writer.flush()
    assert {one.name for one in shared_pipelines(cluster)} == before
    document = json.dumps({"run": "x"}).encode()
    writer.send(BatchToSend(*PLACE, build_batch([Record(0, 1, b"honest/stop", document)])))
    writer.flush()
    assert {one.name for one in shared_pipelines(cluster)} == before

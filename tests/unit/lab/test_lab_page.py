"""The lab's page without a browser: lanes, the timeline, routes; no cluster is started."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from tidelog.cli.main import tidelog
from tidelog.lab import catalog
from tidelog.lab.events import EventStream
from tidelog.lab.page import pages
from tidelog.lab.page.lanes import SLOTS, Known, Lane, lanes
from tidelog.lab.page.serving import Switch
from tidelog.lab.page.timeline import RECORDS_MAX, Timeline
from tidelog.lab.session import Phase


def a_picture(
    *, ends: tuple[int, ...], high_watermark: int | None, last_stable: int | None = None, log_start: int = 0
) -> dict[str, Any]:
    """One partition on as many brokers as there are log ends; broker 1 leads, the last one is paused."""
    brokers = range(1, len(ends) + 1)
    replicas = [
        {"broker": number, "log_end": end, "leads": number == 1, "in_sync": end == max(ends), "alive": True}
        for number, end in zip(brokers, ends, strict=True)
    ]
    row = {
        "partition": 0,
        "leader": 1,
        "isr": [1],
        "log_start": log_start,
        "high_watermark": high_watermark,
        "last_stable": high_watermark if last_stable is None else last_stable,
        "replicas": replicas,
    }
    reader: dict[str, Any] = {"name": "anna", "group": "g", "state": "running", "assignment": [["orders", 0]]}
    reader |= {"positions": [["orders", 0, 7]], "committed": [["orders", 0, 5]], "processed": 7}
    idle = {**reader, "name": "ben", "assignment": [["orders", 1]]}
    states = [{"id": number, "state": "paused" if number == 3 else "running"} for number in brokers]
    return {
        "brokers": states,
        "topics": [{"name": "orders", "partitions": [row]}],
        "consumers": [reader, idle],
    }


def a_lane(**looks: Any) -> Lane:
    [lane] = lanes(a_picture(**looks), {})
    return lane


def states(lane: Lane, replica: int = 0) -> list[str]:
    return [cell.state for cell in lane.replicas[replica].cells]


def test_a_short_log_begins_at_the_left_and_has_a_slot_for_what_comes_next() -> None:
    lane = a_lane(ends=(3, 2, 3), high_watermark=2)
    assert states(lane)[:5] == ["committed", "committed", "uncommitted", "next", "ahead"]
    assert states(lane, 1)[:5] == ["committed", "committed", "missing", "next", "ahead"]
    assert lane.ruler[:5] == ["0", "1", "2", "3", ""]
    assert lane.high_watermark_slot == 2
    assert lane.short
    assert [row.role for row in lane.replicas] == ["leader", "follower", "paused"]


def test_a_long_log_shows_its_newest_offsets() -> None:
    lane = a_lane(ends=(100,), high_watermark=100)
    assert len(states(lane)) == SLOTS
    assert states(lane)[-1] == "next" and set(states(lane)[:-1]) == {"committed"}
    assert lane.ruler[-1] == "100"
    assert lane.high_watermark_slot == SLOTS - 1
    [reader] = lane.readers
    assert reader.before and reader.position_slot == 0
    assert not lane.short


def test_large_offsets_are_written_where_they_have_room() -> None:
    lane = a_lane(ends=(12_344,), high_watermark=12_344)
    assert [text for text in lane.ruler if text] == ["12325", "12330", "12335", "12340"]


def test_open_transactions_and_deleted_records_have_looks_of_their_own() -> None:
    lane = a_lane(ends=(6,), high_watermark=6, last_stable=4, log_start=2)
    assert states(lane)[:6] == ["deleted", "deleted", "committed", "committed", "open", "open"]
    assert (lane.high_watermark_slot, lane.last_stable_slot) == (6, 4)


def test_without_a_leader_positions_are_not_known() -> None:
    lane = a_lane(ends=(3,), high_watermark=None)
    assert lane.high_watermark_slot is None
    assert states(lane)[:3] == ["committed"] * 3


def test_only_readers_that_have_the_partition_stand_at_it() -> None:
    [reader] = a_lane(ends=(9,), high_watermark=9).readers
    assert (reader.name, reader.position, reader.committed, reader.lag) == ("anna", 7, 5, 4)


def test_known_records_have_the_colour_of_their_key() -> None:
    records = {("orders", 0, 0): Known("eu", "first", 3)}
    [lane] = lanes(a_picture(ends=(2,), high_watermark=2), records)
    first, second = lane.replicas[0].cells[:2]
    assert first.hue == 3 and "eu" in first.title and "first" in first.title
    assert second.hue == 0


# The timeline


def told(*events: tuple[str, str, dict[str, Any]]) -> Timeline:
    stream = EventStream()
    timeline = Timeline()
    for kind, text, fields in events:
        timeline.add(stream.emit(kind, text, **fields))
    return timeline


def delivered(offset: int, key: str | None = "k") -> tuple[str, str, dict[str, Any]]:
    fields = {"topic": "orders", "partition": 0, "offset": offset, "key": key, "value": "v", "error": None}
    return ("delivered", f"'v' is in orders-0 at {offset}", fields)


def test_records_that_follow_each_other_are_one_line() -> None:
    timeline = told(*(delivered(offset) for offset in range(5)), ("isr", "the ISR is [1]", {}))
    assert [line.text for line in timeline.lines] == [
        "5 records were stored in orders, the last in orders-0 at 4",
        "The ISR is [1]",
    ]


def test_a_step_is_a_border() -> None:
    timeline = told(delivered(0), ("step-begins", "Next", {"step": 2, "action": "x"}), delivered(1))
    assert [line.text for line in timeline.lines] == [
        "'v' is in orders-0 at 0",
        "Step 2: Next",
        "'v' is in orders-0 at 1",
    ]


def test_repairs_do_not_look_like_faults() -> None:
    timeline = told(
        ("fault", "Broker 1 is killed", {"fault": "kill", "broker": 1}),
        ("fault", "Broker 1 is started", {"fault": "start", "broker": 1}),
        ("phase", "acting", {"phase": "acting"}),
    )
    assert [line.look for line in timeline.lines] == ["bad", "good"]


def test_equal_keys_have_equal_colours_and_the_first_few_differ() -> None:
    timeline = told(*(delivered(offset, f"key {offset % 3}") for offset in range(6)), delivered(6, None))
    hues = [timeline.records["orders", 0, offset].hue for offset in range(7)]
    assert hues == [1, 2, 3, 1, 2, 3, 0]


def test_what_is_remembered_of_records_is_bounded() -> None:
    timeline = told(*(delivered(offset) for offset in range(RECORDS_MAX + 10)))
    assert len(timeline.records) == RECORDS_MAX
    assert ("orders", 0, 9) not in timeline.records and ("orders", 0, 10) in timeline.records


# The routes


class FakeSession:
    """A session that stands still before its second step."""

    def __init__(self, *_: object, **__: object) -> None:
        self.scenario = catalog.load("keys-and-ordering")
        self.events = EventStream()
        self.phase = Phase.PREDICTED
        self.lab = None
        self.auto = False
        self.went_on = threading.Event()
        self.faults: list[tuple[str, str]] = []
        self.events.emit("step-begins", "<b>One</b>", step=2, action="")

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.phase = Phase.ENDED

    def go_on(self) -> None:
        self.went_on.set()

    def set_auto(self, auto: bool) -> None:
        self.auto = auto

    def fault(self, name: str, target: str) -> None:
        if target == "9":
            raise pages.FaultNotPossible("there is no broker '9'")  # type: ignore[attr-defined]
        self.faults.append((name, target))

    def picture(self) -> dict[str, Any]:
        row = {"controller": True, "known": True, "cut": False, "delay_ms": 0, "address": "127.0.0.1:1"}
        shown = a_picture(ends=(3, 2), high_watermark=2)
        for broker in shown["brokers"]:
            broker |= row
        return shown

    def state(self) -> dict[str, Any]:
        texts = {"title": "Two", "narration": "n", "action": "a", "prediction": "<i>p</i>"}
        result = {"title": "One", "prediction": "q", "held": True, "seconds": 1.0, "shown": [], "faults": []}
        return {
            "scenario": self.scenario.as_json(),
            "phase": str(self.phase),
            "auto": self.auto,
            "step": {"number": 2, "count": 4, **texts},
            "results": [{**result, "checks": [{"claim": "it is so", "held": True, "instead": ""}]}],
            "outcome": None,
            "summary": "",
            "message": "",
            "faults": [],
            "last_event": 1,
        }


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, Switch]]:
    monkeypatch.setattr("tidelog.lab.page.stage.LabSession", FakeSession)
    switch = Switch()
    client = TestClient(switch, base_url="http://localhost", headers={"x-lab": "1"}, follow_redirects=False)
    yield client, switch
    switch.close()


def token_of(client: TestClient) -> str:
    text = client.get("/lab").text
    return text.split('name="token" value="')[1].split('"')[0]


def post(client: TestClient, path: str, **form: str) -> Any:
    return client.post(path, data={"token": token_of(client), **form})


def running(client: TestClient, switch: Switch) -> FakeSession:
    assert post(client, "/lab/start", name="keys-and-ordering").headers["location"] == "/lab/run"
    session: Any = switch.stage.session
    assert isinstance(session, FakeSession)
    return session


def test_without_a_cluster_there_is_the_list_alone(browser: tuple[TestClient, Switch]) -> None:
    client, _ = browser
    assert client.get("/").headers["location"] == "/lab"
    text = client.get("/lab").text
    assert 'id="replication-and-failover"' in text and 'href="/topics"' not in text
    assert client.get("/lab/run").headers["location"] == "/lab"


def test_the_page_has_every_region_escaped(browser: tuple[TestClient, Switch]) -> None:
    client, switch = browser
    running(client, switch)
    text = client.get("/lab/run").text
    for region in pages.REGIONS:
        assert f'id="lab-{region}"' in text
    assert "&lt;i&gt;p&lt;/i&gt;" in text and "<i>p</i>" not in text
    assert "&lt;b&gt;One&lt;/b&gt;" in text
    assert 'data-lane="orders-0"' in text and "style=" not in text


def test_next_goes_on_from_where_it_was_seen_only(browser: tuple[TestClient, Switch]) -> None:
    client, switch = browser
    session = running(client, switch)
    assert post(client, "/lab/next", at="1-observed").status_code == 204
    assert not session.went_on.is_set()
    assert post(client, "/lab/next", at="2-predicted").status_code == 204
    assert session.went_on.is_set()


def test_buttons_need_the_token(browser: tuple[TestClient, Switch]) -> None:
    client, switch = browser
    session = running(client, switch)
    assert client.post("/lab/fault", data={"fault": "kill", "target": "1"}).status_code == 403
    assert post(client, "/lab/fault", fault="kill", target="1").status_code == 204
    assert session.faults == [("kill", "1")]
    assert post(client, "/lab/auto", auto="on").status_code == 204
    assert session.auto


def test_what_cannot_be_done_is_said_to_scripts_and_people(browser: tuple[TestClient, Switch]) -> None:
    client, switch = browser
    running(client, switch)
    answer = post(client, "/lab/fault", fault="kill", target="9")
    assert (answer.status_code, answer.json()) == (409, {"error": "there is no broker '9'"})
    assert post(client, "/lab/send", topic="orders").status_code == 409
    del client.headers["x-lab"]
    answer = post(client, "/lab/fault", fault="kill", target="9")
    assert answer.status_code == 303
    assert "there is no broker" in client.get(answer.headers["location"]).text


def test_no_scenario_no_start(browser: tuple[TestClient, Switch]) -> None:
    client, _ = browser
    assert post(client, "/lab/start", name="no-such").status_code == 404


def test_the_end_is_told_on_the_list(browser: tuple[TestClient, Switch]) -> None:
    client, switch = browser
    session = running(client, switch)
    answer = post(client, "/lab/stop")
    assert session.phase is Phase.ENDED
    assert "its cluster is gone" in client.get(answer.headers["location"]).text


# The command line


@pytest.mark.parametrize("arguments", [["acks", "min-insync", "--page"], ["acks", "--page", "--json"]])
def test_a_page_shows_one_scenario_to_a_person(arguments: list[str]) -> None:
    answer = CliRunner().invoke(tidelog, ["lab", "run", *arguments])
    assert answer.exit_code != 0
    assert "--page shows one scenario" in answer.output


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = CliRunner().invoke(tidelog, ["lab", "page", "--page-port", str(port)])
    assert answer.exit_code != 0
    assert f"cannot listen on port {port}" in answer.output

"""`tidelog up --brokers`, `tidelog broker` and `tidelog cluster`: their options and their answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.admin.cluster_state import BrokerState, ClusterState, PartitionState
from tidelog.admin.faults import AdminFault
from tidelog.admin.reassignment import throttled_replicas
from tidelog.admin.reassignment_plan import Move, ReassignmentPlan
from tidelog.cli.broker import broker_overrides
from tidelog.cli.cluster_status import broker_rows, summary
from tidelog.cli.errors import CommandError
from tidelog.cli.main import tidelog
from tidelog.cli.up_cluster import ClusterPlan
from tidelog.testing.broker import RunningBroker

NOWHERE = "127.0.0.1:1"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tidelog, list(arguments))


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker() as broker:
        broker.create_topic("orders", partitions=2)
        yield broker.bootstrap


def plan(**options: object) -> ClusterPlan:
    return ClusterPlan(**{"brokers": 3, "data": Path("d"), "host": "127.0.0.1", "port": 9092, **options})  # type: ignore[arg-type]


def test_brokers_get_consecutive_ports_racks_and_one_store() -> None:
    made = plan(racks=("a", "b", "c"), first_id=5)
    first, _, third = made.overrides({"num.partitions": "3"}, made.ports())
    assert first["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert third["listeners"] == "PLAINTEXT://127.0.0.1:9094"
    assert (third["node.id"], third["broker.rack"], third["log.dirs"]) == ("7", "c", "d/broker-7")
    assert first["tidelog.coordination.path"] == third["tidelog.coordination.path"]
    assert first["default.replication.factor"] == "3" and first["min.insync.replicas"] == "2"


def test_what_a_person_sets_wins_over_what_a_cluster_is_given() -> None:
    made = plan(advertise="kafka.example.com:7000")
    settings = made.overrides({"default.replication.factor": "1"}, made.ports())
    assert settings[1]["default.replication.factor"] == "1"
    assert settings[1]["advertised.listeners"] == "PLAINTEXT://kafka.example.com:7001"


def test_free_ports_differ() -> None:
    assert len(set(plan(port=0, brokers=5).ports())) == 5


@pytest.mark.parametrize(
    ("options", "shared", "reason"),
    [
        ({}, {"log.dirs": "x"}, "log.dirs cannot be the same"),
        ({}, {"listeners": "PLAINTEXT://h:1"}, "listeners cannot be the same"),
        ({"racks": ("a",)}, {}, "1 names for 3 brokers"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    options: dict[str, object], shared: dict[str, str], reason: str
) -> None:
    with pytest.raises(CommandError, match=reason):
        plan(**options).overrides(shared, [1, 2, 3])


def test_ports_end_at_the_last_one() -> None:
    with pytest.raises(CommandError, match="no 3 ports"):
        plan(port=65_534).ports()


def test_folders_of_brokers_and_clusters_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    result = run("up", "--brokers", "3", "--port", "0", "--data", str(tmp_path))
    assert result.exit_code == 1 and "data of a single broker" in result.output
    (tmp_path / "cluster.json").write_text("{}")
    result = run("up", "--port", "0", "--data", str(tmp_path))
    assert result.exit_code == 1 and "data of a cluster" in result.output


def test_bad_settings_of_a_cluster_are_told_before_anything_starts(tmp_path: Path) -> None:
    result = run("up", "--brokers", "3", "--data", str(tmp_path / "new"), "--set", "no.such=1")
    assert result.exit_code == 1 and "unknown broker setting 'no.such'" in result.output
    assert not (tmp_path / "new").exists()


def test_racks_need_a_cluster() -> None:
    assert run("up", "--racks", "a").exit_code == 2


def test_a_broker_needs_a_number_and_a_meeting_place() -> None:
    with pytest.raises(CommandError, match="number of its own"):
        broker_overrides({}, {"zookeeper.connect": "zk:2181"}, {})
    with pytest.raises(CommandError, match="meets the others"):
        broker_overrides({}, {"node.id": "1"}, {})
    with pytest.raises(CommandError, match="exclude each other"):
        broker_overrides(
            {"zookeeper.connect": "zk:2181"}, {"node.id": "1", "tidelog.coordination.path": "f"}, {}
        )
    made = broker_overrides(
        {"zookeeper.connect": "a:1", "broker.rack": "r"},
        {"node.id": "1", "zookeeper.connect": "b:2"},
        {"x": "y"},
    )
    assert made == {
        "zookeeper.connect": "b:2",
        "broker.rack": "r",
        "node.id": "1",
        "x": "y",
        "listeners": "PLAINTEXT://:9092",
    }


def state(**changes: object) -> ClusterState:
    fields: dict[str, object] = {
        "cluster_id": "c",
        "controller": 1,
        "brokers": (BrokerState(1, "h:1", "a", True), BrokerState(2, "h:2", "b", True)),
        "partitions": (
            PartitionState("t", 0, 1, 4, (1, 2), (2, 1)),
            PartitionState("t", 1, 1, 5, (2, 1), (1, 2)),
        ),
    }
    return ClusterState(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_cluster_is_well_when_nothing_is_missing() -> None:
    assert state().well
    assert summary(state())["not_led_by_preferred"] == 1
    assert [row["leads"] for row in broker_rows(state())] == [2, 0]
    assert [row["preferred"] for row in broker_rows(state())] == [1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": None},
        {"brokers": (BrokerState(1, "h:1", None, True), BrokerState(2, None, None, False))},
        {"partitions": (PartitionState("t", 0, 1, 4, (1, 2), (1,)),)},
        {"partitions": (PartitionState("t", 0, -1, 4, (1, 2), (1, 2)),)},
    ],
)
def test_a_cluster_is_not_well_when_something_is(changes: dict[str, object]) -> None:
    assert not state(**changes).well


def test_unknown_topics_and_partitions_are_errors() -> None:
    with pytest.raises(AdminFault, match="no topic x"):
        state().of_topics(("x",))
    with pytest.raises(AdminFault, match="no partition 9"):
        state().partition("t", 9)


def test_only_what_is_copied_is_throttled() -> None:
    made = ReassignmentPlan((Move("t", 0, (1, 2), (2, 3)), Move("t", 1, (1, 2), (2, 1))))
    assert throttled_replicas(made) == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        }
    }


def test_status_and_brokers_of_a_single_broker(bootstrap: str) -> None:
    result = run("cluster", "status", "--json", "--partitions", "--check", "--bootstrap", bootstrap)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["well"] and shown["brokers_alive"] == 1 and shown["partitions"] == 2
    assert [item["leader_epoch"] for item in shown["partitions_shown"]] == [0, 0]
    rows = json.loads(run("cluster", "brokers", "--json", "--bootstrap", bootstrap).output)
    assert [(row["id"], row["leads"], row["alive"]) for row in rows] == [(1, 2, True)]
    assert "BROKER" in run("cluster", "brokers", "--bootstrap", bootstrap).output


def test_a_plan_for_one_broker_has_nothing_to_move(bootstrap: str) -> None:
    result = run("cluster", "reassign", "--topic", "orders", "--bootstrap", bootstrap)
    assert result.exit_code == 0 and "Nothing has to move" in result.output
    result = run("cluster", "decommission", "1", "--bootstrap", bootstrap)
    assert result.exit_code == 1 and "without broker 1" in result.output
    result = run("cluster", "move", "orders", "0", "--replicas", "7", "--bootstrap", bootstrap)
    assert result.exit_code == 1 and "broker 7 is not alive" in result.output
    result = run("cluster", "decommission", "9", "--bootstrap", bootstrap)
    assert result.exit_code == 1 and "no broker 9" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "reassign"],
        ["cluster", "reassign", "--list", "--cancel"],
        ["cluster", "reassign", "--topic", "t", "--brokers", "1,x"],
        ["cluster", "reassign", "--topic", "t", "--brokers", "1,1"],
        ["cluster", "move", "t", "0"],
        ["cluster", "move", "t", "0", "--replicas", "1", "--leader", "2"],
    ],
)
def test_a_wrong_command_line_is_code_two(words: list[str]) -> None:
    assert run(*words, "--bootstrap", NOWHERE).exit_code == 2


def test_roll_needs_a_cluster_that_runs(tmp_path: Path) -> None:
    result = run("cluster", "roll", "--data", str(tmp_path))
    assert result.exit_code == 1 and "no cluster runs" in result.output

"""The checks of `tidelog doctor` on values, and the command against a broker in this process."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.admin import diagnosis_checks
from tidelog.admin.diagnosis import (
    SETTING_OF_TIDELOG,
    Examination,
    Finding,
    LogRange,
    SeenBroker,
    SeenGroup,
    SeenJob,
    SeenJobs,
    SeenPartition,
    SeenRefusedCut,
    SeenTopic,
    SeenUncleanable,
    Severity,
    some,
)
from tidelog.admin.diagnosis_internal_topics import internal_topics
from tidelog.admin.eligible_leaders import Eligible, eligible_leaders
from tidelog.admin.log_dirs import LogDirView
from tidelog.admin.transactions import OpenProducer, TransactionView
from tidelog.cli.main import tidelog
from tidelog.testing.broker import RunningBroker

NOW_MS = 1_800_000_000_000
NOWHERE = "127.0.0.1:1"
APIS = {0: (0, 13), 1: (4, 18)}


def broker(number: int, **changed: object) -> SeenBroker:
    plain = SeenBroker(
        number,
        f"10.0.0.{number}:9092",
        cluster_id="c",
        versions=APIS,
        configs={"num.partitions": "1"},
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def topic(name: str, *partitions: SeenPartition, internal: bool = False, **configs: str) -> SeenTopic:
    settings = {"min.insync.replicas": "2"} | {key.replace("_", "."): value for key, value in configs.items()}
    return SeenTopic(name, internal, partitions, settings)


def partition(name: str, number: int = 0, leader: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> SeenPartition:
    return SeenPartition(name, number, leader, (1, 2, 3), isr)


def healthy(**changed: object) -> Examination:
    whole = Examination(
        "10.0.0.1:9092",
        NOW_MS,
        "c",
        1,
        (broker(1), broker(2), broker(3)),
        (
            topic("orders", *(SeenPartition("orders", n, 1 + n % 3, _ring(n), (1, 2, 3)) for n in range(12))),
            topic("__consumer_offsets", partition("__consumer_offsets"), internal=True),
        ),
        {("orders", 0): LogRange(0, 10, 10, NOW_MS)},
        (SeenGroup("billing", "Stable", "classic", 1, {("orders", 0): 10}),),
        log_dirs=(LogDirView(1, "/data", "", 1000, 900),),
        background=SeenJobs((SeenJob(1, "compaction", 0, 3.0, ""),), (), {1: 0}, {1: 0}),
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


def _ring(number: int) -> tuple[int, ...]:
    return tuple(1 + (number + step) % 3 for step in range(3))


def said(check: str, seen: Examination) -> list[Finding]:
    return getattr(diagnosis_checks, check)(seen)


def only(check: str, seen: Examination, severity: Severity) -> Finding:
    (found,) = said(check, seen)
    assert found.severity is severity, found
    assert found.next_step or severity is Severity.OK
    return found


def test_a_healthy_cluster_has_nothing_but_ok() -> None:
    findings = diagnosis_checks.diagnose(healthy())
    assert [finding for finding in findings if finding.severity > Severity.OK] == []
    assert len(findings) == 14, "every check but that of certificates says something"


@pytest.mark.parametrize(
    ("changed", "words", "step"),
    [
        ({"fault": "connection refused"}, "connection refused", "10.0.0.2:9092"),
        ({"fault": "unknown host", "address": "b2:9092"}, "b2:9092", "resolve"),
        ({"fault": "connection refused", "address": "localhost:9092"}, "localhost", "--advertise"),
        ({"cluster_id": "other"}, "another cluster", "advertised.listeners"),
        ({"itself": False}, "another broker", "advertised.listeners"),
    ],
)
def test_addresses(changed: dict[str, object], words: str, step: str) -> None:
    seen = healthy(brokers=(broker(1), broker(2, **changed), broker(3)))
    found = only("reachability", seen, Severity.PROBLEM)
    assert "broker 2" in found.message and words in found.message and step in found.next_step


def test_a_broker_on_the_same_machine_may_advertise_it() -> None:
    fallen = broker(1, address="127.0.0.1:9092", fault="connection refused")
    found = only("reachability", healthy(bootstrap="localhost:9093", brokers=(fallen,)), Severity.PROBLEM)
    assert "--advertise" not in found.next_step


def test_dead_brokers_and_no_controller() -> None:
    seen = healthy(brokers=(broker(1), broker(2), broker(3, alive=False)), controller=None)
    found = only("brokers", seen, Severity.PROBLEM)
    assert "broker 3 is dead; 13 replicas" in found.message and "decommission 3" in found.next_step
    assert "no controller" in only("controller", seen, Severity.PROBLEM).message


def test_a_broker_that_hangs_is_not_called_dead() -> None:
    seen = healthy(brokers=(broker(1), broker(2), broker(3, alive=False, listens=True)))
    found = only("brokers", seen, Severity.PROBLEM)
    assert "broker 3 hangs" in found.message and "answers none" in found.message
    assert "where its event loop stands" in found.next_step and "decommission" not in found.next_step
    seen = healthy(brokers=(broker(1), broker(2), broker(3, alive=False, listens=True, answers=True)))
    found = only("brokers", seen, Severity.PROBLEM)
    assert "out of the cluster" in found.message and "tidelog_disk_silent_seconds" in found.next_step


def test_a_partition_without_a_leader_tells_whom_it_waits_for() -> None:
    brokers = (broker(1), broker(2), broker(3, alive=False, fault=None))
    one = SeenPartition("orders", 0, -1, (1, 2, 3), (), (), elr=(3,), last_known_elr=(1, 2))
    all_of_them = SeenPartition("orders", 0, -1, (1, 2, 3), (), (), last_known_elr=(1, 2, 3))
    for waits in (one, all_of_them):
        [offline] = said("partitions", healthy(brokers=brokers, topics=(topic("orders", waits),)))
        assert "broker 3;" in offline.next_step and "longest log" in offline.next_step


def test_what_eligible_leaders_say_in_a_sentence() -> None:
    assert Eligible((3,), (1,)).sentence([1]) == "waits for broker 3, which has everything"
    assert "one of the brokers 2 and 3" in Eligible((2, 3)).sentence([1])
    assert "all of 2 and 3 to return" in Eligible((), (1, 2, 3)).sentence([1])
    assert "how long their logs are" in Eligible((), (1, 2)).sentence([1, 2])
    assert Eligible().sentence([1]) == ""


@pytest.mark.parametrize("waits", [Eligible((), (1, 2), (1,)), Eligible((1,), (2,), (1,))])
def test_a_broker_that_is_there_without_the_directory_is_waited_for(waits: Eligible) -> None:
    sentence = waits.sentence([1, 2, 3])
    assert "mount it" in sentence and "tidelog.lost.directories" in sentence and "--unclean" in sentence
    assert "of broker 1 is not there" in sentence and "how long their logs are" not in sentence
    stuck = SeenPartition("orders", 0, -1, (1, 2), (), waits.offline, waits.elr, waits.last_known_elr)
    [offline] = said("partitions", healthy(topics=(topic("orders", stuck),)))
    assert "tidelog.lost.directories" in offline.next_step and "on broker 1" in offline.next_step
    assert "start the brokers" not in offline.next_step, "they are all there"


def test_eligible_leaders_are_asked_page_by_page() -> None:
    pages = [
        paged(("a", 0, (1,), None), ("b", 0, None, (2,)), following=("b", 1)),
        paged(("b", 1, (), ()), ("c", 0, (3,), (4,))),
    ]
    asked: list[dict[str, Any]] = []

    def ask(fields: dict[str, Any]) -> Any:
        asked.append(fields)
        return pages[len(asked) - 1]

    assert eligible_leaders(ask, ["c", "b", "a"]) == {
        ("a", 0): Eligible((1,), (), (7,)),
        ("b", 0): Eligible((), (2,), (7,)),
        ("c", 0): Eligible((3,), (4,), (7,)),
    }
    assert [[each["name"] for each in fields["topics"]] for fields in asked] == [["a", "b", "c"], ["b", "c"]]
    assert asked[1]["cursor"] == {"topic_name": "b", "partition_index": 1}
    assert eligible_leaders(lambda fields: None, ["a"]) == {}


def paged(*rows: tuple[str, int, Any, Any], following: tuple[str, int] | None = None) -> Any:
    topics = [
        SimpleNamespace(
            name=name,
            partitions=[
                SimpleNamespace(
                    partition_index=index,
                    eligible_leader_replicas=elr,
                    last_known_elr=last,
                    offline_replicas=(7,),
                )
            ],
        )
        for name, index, elr, last in rows
    ]
    cursor = following and SimpleNamespace(topic_name=following[0], partition_index=following[1])
    return SimpleNamespace(topics=topics, next_cursor=cursor)


def test_partitions_by_how_bad_they_are() -> None:
    sick = topic(
        "orders",
        partition("orders", 0, leader=-1, isr=(3,)),
        partition("orders", 1, isr=(1,)),
        partition("orders", 2, isr=(1, 2)),
        partition("orders", 3),
    )
    offline, refusing, behind = said("partitions", healthy(topics=(sick,)))
    assert (offline.severity, offline.subjects) == (Severity.PROBLEM, ("orders-0",))
    assert "brokers 1, 2" in offline.next_step
    assert (refusing.severity, refusing.subjects) == (Severity.PROBLEM, ("orders-1",))
    assert (behind.severity, behind.subjects) == (Severity.WARNING, ("orders-2",))
    assert "broker 3" in behind.next_step


def test_leaders() -> None:
    one_of_twelve = [SeenPartition("orders", n, 1 + n % 3, _ring(n), (1, 2, 3)) for n in range(12)]
    one_of_twelve[0] = replace(one_of_twelve[0], leader=2)
    found = only("leaders", healthy(topics=(topic("orders", *one_of_twelve),)), Severity.HINT)
    assert found.subjects == ("orders-0",)
    moved = [replace(item, leader=1) for item in one_of_twelve]
    assert (
        "8 partitions of 12"
        in only("leaders", healthy(topics=(topic("orders", *moved),)), Severity.WARNING).message
    )
    away = [replace(one_of_twelve[0], isr=(2, 3))]
    assert only("leaders", healthy(topics=(topic("orders", *away),)), Severity.OK)
    heavy = topic("orders", *(partition("orders", n) for n in range(12)))
    assert "broker 1 leads 12" in only("leaders", healthy(topics=(heavy,)), Severity.HINT).message
    assert said("leaders", healthy(brokers=(broker(1),))) == []


@pytest.mark.parametrize(
    ("replicas", "minimum", "severity", "words"),
    [
        (3, "3", Severity.WARNING, "min.insync.replicas equals"),
        (3, "4", Severity.PROBLEM, "larger"),
        (3, "1", Severity.HINT, "the leader alone"),
        (3, "2", Severity.OK, "enough"),
        (2, "1", Severity.HINT, "fewer than 3"),
        (1, "1", Severity.WARNING, "one replica"),
    ],
)
def test_replication(replicas: int, minimum: str, severity: Severity, words: str) -> None:
    held = tuple(range(1, replicas + 1))
    made = topic("orders", SeenPartition("orders", 0, 1, held, held), min_insync_replicas=minimum)
    assert words in only("replication", healthy(topics=(made,)), severity).message


def test_min_insync_advice_names_the_value() -> None:
    made = topic("orders", partition("orders"), min_insync_replicas="3")
    found = only("replication", healthy(topics=(made,)), Severity.WARNING)
    assert found.next_step.endswith("tidelog config set topic orders min.insync.replicas=2")


def test_one_broker_is_a_hint_and_internal_topics_are_theirs() -> None:
    alone = SeenPartition("t", 0, 1, (1,), (1,))
    seen = healthy(
        brokers=(broker(1),),
        topics=(
            topic("t", alone, min_insync_replicas="1"),
            topic("__consumer_offsets", alone, internal=True),
        ),
    )
    assert "one broker" in only("replication", seen, Severity.HINT).message
    assert only("internal_topics", seen, Severity.OK)
    more = replace(seen, brokers=(broker(1), broker(2)))
    assert "fewer than 2" in only("internal_topics", more, Severity.WARNING).message


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        # Apache Kafka, and brokers of ours that others may join
        ({}, ["__share_group_state", "__transaction_state"]),
        (
            {SETTING_OF_TIDELOG: "1", "zookeeper.connect": "zk:2181"},
            ["__share_group_state", "__transaction_state"],
        ),
        ({SETTING_OF_TIDELOG: "1", "zookeeper.connect": None}, []),
        ({"share.coordinator.state.topic.replication.factor": "1"}, ["__transaction_state"]),
    ],
)
def test_internal_topics_that_cannot_be_made(configs: dict[str, str | None], names: list[str]) -> None:
    alone = SeenPartition("__consumer_offsets", 0, 1, (1,), (1,))
    factors = {
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "share.coordinator.state.topic.replication.factor": "3",
    }
    seen = healthy(
        brokers=(broker(1, configs={**factors, **configs}),),
        topics=(topic("__consumer_offsets", alone, internal=True),),
    )
    found = [finding for finding in internal_topics(seen) if finding.severity is Severity.WARNING]
    assert sorted(finding.subjects[0] for finding in found) == names
    assert all("3 replicas, there is only 1 broker" in finding.message for finding in found)


def test_settings_that_differ_and_unclean_elections() -> None:
    seen = healthy(
        brokers=(broker(1), broker(2, configs={"num.partitions": "6"})),
        topics=(topic("orders", partition("orders"), unclean_leader_election_enable="true"),),
    )
    differs, unclean = said("settings", seen)
    assert "broker 1: 1, broker 2: 6" in differs.message and unclean.subjects == ("orders",)


LAGGING = SeenGroup("billing", "Stable", "classic", 2, {("orders", 0): 4})


@pytest.mark.parametrize(
    ("group", "severity", "words"),
    [
        (replace(LAGGING, committed_later={("orders", 0): 4}), Severity.WARNING, "committed nothing in 6 s"),
        (replace(LAGGING, committed_later={("orders", 0): 5}), Severity.OK, "none behind"),
        (replace(LAGGING, committed_later={("orders", 0): 4, ("orders", 1): 0}), Severity.OK, "none behind"),
        (LAGGING, Severity.OK, "none behind"),
        (replace(LAGGING, state="Empty", members=0), Severity.HINT, "6 records wait"),
        (
            replace(LAGGING, state="PreparingRebalance", state_later="CompletingRebalance"),
            Severity.PROBLEM,
            "rebalancing",
        ),
        (replace(LAGGING, state="PreparingRebalance", state_later="Stable"), Severity.OK, "none behind"),
    ],
)
def test_groups(group: SeenGroup, severity: Severity, words: str) -> None:
    assert words in only("groups", healthy(groups=(group,), watched_seconds=6.0), severity).message


def test_what_leaders_note_of_delayed_records_is_no_group_to_look_after() -> None:
    noted = replace(LAGGING, id="__tidelog_delay.later", state="Empty", members=0)
    assert said("groups", healthy(groups=(noted,))) == []
    assert "1 group," in only("groups", healthy(groups=(noted, LAGGING)), Severity.OK).message


def test_groups_far_behind_and_what_retention_took() -> None:
    logs = {("orders", 0): LogRange(1_000, 500_000, 500_000)}
    idle = replace(LAGGING, members=0, state="Empty")
    lost, waiting = said("groups", healthy(logs=logs, groups=(idle,)))
    assert "996 records before retention" in lost.message and lost.severity is Severity.WARNING
    assert waiting.severity is Severity.WARNING and "499000 records" in waiting.message
    moving = replace(LAGGING, committed={("orders", 0): 2_000}, committed_later={("orders", 0): 2_500})
    found = only("groups", healthy(logs=logs, groups=(moving,)), Severity.HINT)
    assert "moves, but is 498000 records behind" in found.message


def test_transactions() -> None:
    hanging = OpenProducer("orders", 0, 7, 0, 0, 3, NOW_MS)
    seen = healthy(open_producers=(hanging,))
    found = only("transactions", seen, Severity.PROBLEM)
    assert "7 records" in found.message
    assert found.next_step == "tidelog txn abort orders 0 --start-offset 3"
    known = TransactionView("id", "Ongoing", 7, 1, 0, 60_000, NOW_MS - 1_000, ("orders-0",))
    assert only("transactions", replace(seen, transactions=(known,)), Severity.OK)
    overdue = replace(known, start_ms=NOW_MS - 600_000)
    late = only("transactions", replace(seen, transactions=(overdue,)), Severity.WARNING)
    assert "for 600 s, longer than its timeout of 60 s" in late.message


@pytest.mark.parametrize(
    ("folder", "severity"),
    [
        (LogDirView(1, "/data", "KAFKA_STORAGE_ERROR"), Severity.PROBLEM),
        (LogDirView(1, "/data", "", 1000, 40), Severity.PROBLEM),
        (LogDirView(1, "/data", "", 1000, 100), Severity.WARNING),
        (LogDirView(1, "/data", "", 1000, 500), Severity.OK),
        (LogDirView(1, "/data", ""), Severity.OK),
    ],
)
def test_disks(folder: LogDirView, severity: Severity) -> None:
    only("disks", healthy(log_dirs=(folder,)), severity)


def test_replicas_on_a_failed_disk() -> None:
    sick = replace(partition("orders", isr=(1, 3)), offline_replicas=(2,))
    seen = healthy(topics=(topic("orders", sick),), log_dirs=())
    assert only("disks", seen, Severity.PROBLEM).subjects == ("orders-0 on broker 2",)
    dead = replace(seen, brokers=(broker(1), broker(2, alive=False), broker(3)))
    assert said("disks", dead) == []


def test_clocks() -> None:
    ahead = healthy(controller_clock_ms=(NOW_MS, NOW_MS + 60_000, NOW_MS + 10))
    assert "60 s ahead of" in only("clocks", ahead, Severity.WARNING).message
    behind = healthy(controller_clock_ms=(NOW_MS, NOW_MS - 60_000, NOW_MS + 10))
    assert "60 s behind" in only("clocks", behind, Severity.WARNING).message
    near = healthy(controller_clock_ms=(NOW_MS, NOW_MS + 1_000, NOW_MS + 10))
    assert only("clocks", near, Severity.OK)
    future = healthy(logs={("orders", 0): LogRange(0, 1, 1, NOW_MS + 86_400_000)})
    assert only("clocks", future, Severity.WARNING).subjects == ("orders-0",)


def test_versions() -> None:
    older = {0: (0, 9), 1: (0, 12)}
    found = only("versions", healthy(brokers=(broker(1), broker(2, versions=older))), Severity.HINT)
    assert found.subjects == ("broker 2",)
    ancient = healthy(brokers=(broker(1, versions={0: (0, 2), 1: (0, 3)}),))
    assert "Kafka 0.10" in only("versions", ancient, Severity.WARNING).message


@pytest.mark.parametrize(
    ("days", "severity", "words"),
    [
        (-2, Severity.PROBLEM, "ended 2 days ago"),
        (1, Severity.PROBLEM, "ends in 1 days"),
        (20, Severity.WARNING, "ends in 20 days"),
        (90, Severity.OK, "good for 90 days"),
    ],
)
def test_certificates(days: int, severity: Severity, words: str) -> None:
    ends = NOW_MS / 1000 + days * 86_400
    seen = healthy(encrypted=True, brokers=(broker(1, certificate_expires_at=ends),))
    assert words in only("certificates", seen, severity).message
    assert said("certificates", replace(seen, encrypted=False)) == []


def test_what_was_not_seen_is_said() -> None:
    found = only("unseen", healthy(unseen=("log dirs: CLUSTER_AUTHORIZATION_FAILED",)), Severity.HINT)
    assert "CLUSTER_AUTHORIZATION_FAILED" in found.message


def test_long_lists_are_cut() -> None:
    assert some([str(number) for number in range(8)]) == "0, 1, 2, 3, 4 and 3 more"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker() as running:
        running.create_topic("orders", partitions=2)
        yield running.bootstrap


def run(*words: str) -> Result:
    return CliRunner().invoke(tidelog, ["doctor", *words])


def test_a_healthy_broker(bootstrap: str) -> None:
    done = run("--bootstrap", bootstrap)
    assert done.exit_code == 0, done.output
    assert "the one broker answers" in done.output and "0 problems, 0 warnings, 1 hint" in done.output
    quiet = run("--bootstrap", bootstrap, "--quiet").output
    assert "\nok " not in quiet and quiet.startswith("hint")
    report = json.loads(run("--bootstrap", bootstrap, "--json").output)
    assert report["worst"] == "hint" and report["cluster_id"]
    assert {finding["check"] for finding in report["findings"]} >= {"reachability", "disks", "versions"}


def test_nobody_there_is_exit_code_2() -> None:
    done = run("--bootstrap", NOWHERE)
    assert done.exit_code == 2
    assert "connection refused" in done.output and "try: " in done.output


def test_a_background_job_that_fails() -> None:
    told = SeenJobs((SeenJob(2, "compaction", 4, 37.4, "no process can be started"),), (), {2: 0}, {2: 0})
    found = only("background", healthy(background=told), Severity.PROBLEM)
    assert "compaction fails on broker 2 (4 times in a row, for 37 s)" in found.message
    assert "no process can be started" in found.message


def test_logs_that_cannot_be_compacted() -> None:
    logs = tuple(SeenUncleanable(3, f"t-{number}", "a damaged batch") for number in range(7))
    told = SeenJobs((SeenJob(3, "compaction", 0, 1.0, ""),), logs, {3: 7}, {3: 0})
    found = only("background", healthy(background=told), Severity.WARNING)
    assert "broker 3 cannot compact 7 logs" in found.message and "a damaged batch" in found.message
    assert found.subjects == tuple(log.partition for log in logs)


def test_errors_in_the_code_of_a_broker() -> None:
    told = SeenJobs((SeenJob(1, "retention", 0, 1.0, ""),), (), {1: 0}, {1: 2})
    assert "2 errors" in only("background", healthy(background=told), Severity.WARNING).message


def test_brokers_of_another_make_tell_nothing_of_their_jobs() -> None:
    assert said("background", healthy(background=SeenJobs())) == []


def test_a_directory_that_is_offline_says_why() -> None:
    told = SeenJobs(offline_directories={(1, "/data/y"): "it is empty, and the cluster knows of 3 replicas"})
    seen = healthy(log_dirs=(LogDirView(1, "/data/y", "KAFKA_STORAGE_ERROR"),), background=told)
    finding = only("disks", seen, Severity.PROBLEM)
    assert "it is empty" in finding.message and "tidelog.lost.directories" in finding.next_step


def test_a_follower_that_keeps_what_its_leader_lacks() -> None:
    told = SeenJobs(refused_cuts=(SeenRefusedCut(2, "orders-3", 1, 0, 10),))
    finding = only("cuts", healthy(background=told), Severity.PROBLEM)
    assert "committed records 0 to 9" in finding.message
    # Broker 3 follows the leader: its log ends in a newer epoch, and would be elected before that of 2.
    assert "stop the brokers 1 and 3" in finding.next_step
    both = SeenJobs(refused_cuts=tuple(SeenRefusedCut(each, "orders-3", 1, 0, 10) for each in (2, 3)))
    for finding in said("cuts", healthy(background=both)):
        assert "stop broker 1," in finding.next_step
    assert said("cuts", healthy()) == []

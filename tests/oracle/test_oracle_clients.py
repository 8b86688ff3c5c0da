"""Sessions of real clients: what is generated, how outcomes are compared, that broken brokers are noticed.

All without Java: librdkafka's sessions run on a broker twice. `make oracle` compares with Apache Kafka.
"""

import re

import pytest

from tests.oracle import systems
from tests.oracle.clients_activities import ACTIVITIES
from tests.oracle.clients_crashes import Recoveries
from tests.oracle.clients_driver import JAVA_SOURCES, driver
from tests.oracle.clients_faults import make_fault_session
from tests.oracle.clients_generator import Maker, make_session
from tests.oracle.clients_librdkafka import Session as Librdkafka
from tests.oracle.clients_librdkafka_admin import AdminOperations
from tests.oracle.clients_live import ClientDifference, carry_out, differences, shrunk, told
from tests.oracle.clients_rules import normalised
from tests.oracle.clients_session import KILL, WHOLE, ClientSession, Json, Operation
from tests.oracle.planted import PLANTED


def operations_of(client: str) -> set[str]:
    """What a driver is able to."""
    if client == "java":
        texts = [path.read_text(encoding="utf-8") for path in JAVA_SOURCES.glob("*.java")]
        return set(re.findall(r'(?:asked|act|put)\("(\w+)"', "\n".join(texts)))
    own = {name.removeprefix("do_") for name in vars(Librdkafka) if name.startswith("do_")}
    return own | {name for name in vars(AdminOperations) if not name.startswith("_")}


@pytest.mark.parametrize("client", ["java", "librdkafka"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_drivers_know_what_is_generated(client: str, brokers: int) -> None:
    known = operations_of(client)
    sessions = [make_session(seed, client, brokers) for seed in range(100)]
    used = {one.name for session in sessions for one in session.operations}
    assert used <= known, used - known
    assert {"commit", "poll", "delete_records", "create_acls"} <= used


def test_a_seed_makes_one_session() -> None:
    assert make_session(7, "java") == make_session(7, "java")
    assert make_session(7, "java") != make_session(8, "java")


def test_every_activity_is_taken() -> None:
    for activity, weight, clients in ACTIVITIES:
        maker = Maker(1, clients[0], 1)
        activity(maker)
        assert weight > 0 and maker.operations, activity.__name__


def outcome(name: str, *outcomes: Json) -> list[Json]:
    """Outcomes of the same operation under the names of different runs, normalised."""
    session = ClientSession(1, "java", (Operation("s1", name, {}),))
    return [normalised(session, f"run{number}-", {"s1": one})["s1"] for number, one in enumerate(outcomes, 1)]


def test_ids_clocks_and_texts_may_differ() -> None:
    rows = [
        [{"id": f"run{number}-x", "producer_id": 4000 + number, "state": "Empty"}, {"id": "other"}]
        for number in (1, 2)
    ]
    first, second = outcome("list_transactions", *rows)
    assert first == second == [{"id": "~x", "producer_id": "producer id 1", "state": "Empty"}]
    faults = [{"error": "X", "code": "Y", "message": text} for text in ("one", "two")]
    assert outcome("commit", *faults) == [{"error": "X", "code": "Y"}] * 2
    times = [[{"offset": 1, "timestamp": time}] for time in (1_800_000_000_001, 1_800_000_000_002)]
    assert outcome("send", *times)[0] == outcome("send", *times)[1]


def test_sets_are_compared_without_their_order_and_ids() -> None:
    one = {"producer_id": 5, "epoch": 0, "last_sequence": 1}
    two = {"producer_id": 6, "epoch": 1, "last_sequence": 2}
    other = [{**one, "producer_id": 9}, {**two, "producer_id": 8}]
    first, second = outcome("describe_producers", {"run1-t": [one, two]}, {"run2-t": other[::-1]})
    assert first == second
    rows = [[{"id": f"run{number}-{name}", "state": "Empty"} for name in "ab"] for number in (1, 2)]
    first, second = outcome("list_transactions", rows[0], rows[1][::-1])
    assert first == second


def test_what_counts_is_a_difference() -> None:
    session = ClientSession(1, "java", (Operation("s1", "send", {}), Operation("s2", "commit", {})))
    kafka = {"s1": [{"offset": 4, "timestamp": 1_700_000_000_000}], "s2": "done"}
    here = {"s1": [{"offset": 5, "timestamp": 1_700_000_000_001}]}
    found = differences(session, kafka, here)
    assert [(one.operation.label, one.path) for one in found] == [
        ("s1", ".0.offset"),
        ("s1", ".0.timestamp"),
        ("s2", ""),
    ]
    assert found[2].here == "(not reached)"
    assert "≠ .0.offset" in told(session, found)


def test_a_session_is_shrunk_to_what_its_difference_needs() -> None:
    labels = [f"s{number}" for number in range(1, 13)]
    session = ClientSession(1, "java", tuple(Operation(label, "poll", {}) for label in labels))

    def compare(candidate: ClientSession) -> list[ClientDifference]:
        left = {one.label for one in candidate.operations}
        last = Operation("s9", "poll", {})
        return [ClientDifference(last, "records", 1, 2)] if {"s2", "s9"} <= left else []

    small = shrunk(session, compare(session)[0], compare)
    assert {"s2", "s9"} <= {one.label for one in small.operations}
    assert len(small.operations) <= 4


def small_session() -> ClientSession:
    """A topic, records, some of them deleted, an offset committed; nothing is waited for."""
    maker = Maker(3, "librdkafka", 1)
    topic = maker.topic(partitions=1)
    maker.add("create_topics", topics=[{"name": topic, "partitions": 1}])
    producer = maker.producer()
    maker.add("send", producer=producer, records=[maker.record(topic, partition=0) for _ in range(4)])
    maker.add("delete_records", before=[[topic, 0, 2]])
    maker.add("list_offsets", partitions=[[topic, 0, "earliest"]])
    maker.add("list_offsets", partitions=[[topic, 0, "latest"]])
    reader = maker.consumer(group_id="~g", enable_auto_commit="false")
    maker.add("commit_offsets", consumer=reader, offsets=[[topic, 0, 3, "my metadata"]])
    maker.add("committed", consumer=reader, partitions=[[topic, 0]])
    return ClientSession(3, "librdkafka", tuple(maker.operations))


def outcomes_of(session: ClientSession, *prefixes: str) -> list[dict[str, Json]]:
    """What comes of a session on one broker, under each of these prefixes."""
    with systems.tidelog(in_thread=True) as here, driver("librdkafka", here) as held:
        return [
            normalised(session, prefix, carry_out(session, held, here, prefix).outcomes)
            for prefix in prefixes
        ]


@pytest.mark.timeout(300)
def test_broken_brokers_are_noticed() -> None:
    session = small_session()
    sound, again = outcomes_of(session, "a-", "b-")
    assert differences(session, sound, again) == []
    for name, where in (
        ("committed metadata gets lost", "committed"),
        ("ListOffsets is one too high", "list_offsets"),
    ):
        with PLANTED[name]():
            (broken,) = outcomes_of(session, "c-")
        assert where in [one.operation.name for one in differences(session, sound, broken)], name


def test_what_is_meant_to_differ_is_passed_over() -> None:
    session = ClientSession(1, "java", (Operation("s1", "describe_configs", {}),))
    rows = [
        {"s1": {"TOPIC ~t1": {"min.insync.replicas": {"source": source, "value": value}}}}
        for source, value in (
            ("DYNAMIC_DEFAULT_BROKER_CONFIG", "1"),
            ("STATIC_BROKER_CONFIG", "1"),
            ("x", "2"),
        )
    ]
    assert differences(session, rows[0], rows[1]) == []
    assert [one.path for one in differences(session, rows[0], rows[2])] != []


@pytest.mark.parametrize("client", ["java", "librdkafka"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_brokers_are_killed_once_in_a_session_with_faults(client: str, brokers: int) -> None:
    known = operations_of(client) | {KILL, WHOLE}
    victims = set()
    for seed in range(30):
        session = make_fault_session(seed, client, brokers)
        names = [one.name for one in session.operations]
        assert set(names) <= known and session.kills
        assert names.count(KILL) == names.count(WHOLE) == 1 and names.index(KILL) < names.index(WHOLE)
        assert any(one.goes_on for one in session.operations[names.index(KILL) :])
        victims |= {one.fields["who"] for one in session.operations if one.name == KILL}
    assert victims == {"leader", "group coordinator", "transaction coordinator", "all brokers"}


def test_what_follows_from_elections_is_compared_only_without_kills() -> None:
    described = Operation("s1", "describe_topics", {})
    calm = ClientSession(1, "java", (described,))
    killed = ClientSession(1, "java", (described, Operation("s2", KILL, {"who": "leader"})))
    sides = [
        {"s1": {"~t1": {"leader": leader, "in_sync": in_sync, "replicas": [1, 2]}}}
        for leader, in_sync in ((1, [1, 2]), (2, [2, 1]))
    ]
    for session, count in ((calm, 3), (killed, 0)):
        kafka, here = (normalised(session, "run-", side) for side in sides)
        assert len(differences(session, kafka, here)) == count


def test_how_long_clients_took_is_told_side_by_side() -> None:
    recoveries = Recoveries()
    recoveries.add("java", "Kafka", [("producer", 4.0, 1.0), ("producer", 6.0, 2.0)])
    recoveries.add("java", "Tidelog", [("producer", 1.0, 0.5)])
    *_, last = recoveries.table().splitlines()
    assert last == "| java: producer | 5.0/6.0 | 1.0/1.0 | 1.5/2.0 | 0.5/0.5 | 2 |"


@pytest.mark.timeout(120)
def test_a_client_goes_on_after_its_broker_was_killed() -> None:
    session = make_fault_session(3, "librdkafka")
    with systems.tidelog(killable=True) as here, driver("librdkafka", here) as held:
        run = carry_out(session, held, here, "a-")
    flushed = next(run.outcomes[one.label] for one in session.operations if one.name == "flush")
    assert flushed["outcome"] == "done"
    assert [one["offset"] for one in flushed["sent"]] == list(range(1, 25))
    ((what, since_kill, since_open),) = run.recoveries
    assert what == "producer with batches in flight, leader" and since_kill > since_open >= 0

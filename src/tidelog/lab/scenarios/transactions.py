"""Transactions: together or not at all, aborted data hidden, zombies fenced, open ones hold readers back."""

import logging

from confluent_kafka import KafkaException

from tidelog.lab.clients import Sender
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

WAIT_SECONDS = 15.0
TIMEOUT_MS = 2_000

#: librdkafka tells on standard error that it was fenced, whatever its log level; the lesson says it itself
SILENT = logging.Logger("tidelog.lab.silent")
SILENT.addHandler(logging.NullHandler())

SCENARIO = Scenario(
    name="transactions",
    title="Transactions",
    minutes=6,
    learn=(
        "records in several topics become visible together, or never",
        "aborted records stay in the log and are skipped by read_committed readers",
        "a new producer with the same transactional.id fences the old one",
        "an open transaction holds read_committed readers back, until it ends or times out",
    ),
    brokers=1,
    topics=(Topic("accounts"), Topic("audit")),
    settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"},
    summary="Give every producer that must not write twice a transactional.id, and its readers "
    "read_committed.",
)


def _transactional(lab: Lab, name: str, **options: object) -> Sender:
    """A producer that has taken over the transactional id."""
    sender = lab.sender(transactional_id=name, logger=SILENT, **options)
    sender.client.init_transactions(WAIT_SECONDS)
    return sender


def _values(lab: Lab, topic: str, isolation: str) -> list[str | None]:
    return [record.value for record in lab.read(topic, isolation_level=isolation)]


@SCENARIO.step(
    "Together",
    narration="A transfer takes 5 from ann and gives it to bob, and notes it in another topic. A reader "
    "of committed data must see all of it or nothing.",
    action="write two records to 'accounts' and one to 'audit' in a transaction; look; commit; look again",
    prediction="before the commit such a reader sees nothing, after it everything; read_uncommitted "
    "sees all at once",
)
def together(lab: Lab, see: Observation) -> None:
    sender = _transactional(lab, "transfer")
    sender.client.begin_transaction()
    sender.send("accounts", "-5", "ann")
    sender.send("accounts", "+5", "bob")
    sender.send("audit", "ann to bob: 5")
    sender.flush()
    rows = []
    for moment in ("before the commit", "after it"):
        for topic in ("accounts", "audit"):
            seen = [len(_values(lab, topic, level)) for level in ("read_committed", "read_uncommitted")]
            position = lab.positions(topic)
            rows.append((moment, topic, *seen, position.last_stable, position.high_watermark))
        if moment == "before the commit":
            sender.client.commit_transaction(WAIT_SECONDS)
    columns = ("when", "topic", "committed", "uncommitted", "last stable offset", "high watermark")
    see.table(columns, rows)
    seen_before = [row[2:4] for row in rows[:2]]
    see.check("before the commit nothing is visible", seen_before == [(0, 2), (0, 1)], seen_before)
    see.check("the last stable offset stood at the start", [row[4] for row in rows[:2]] == [0, 0], rows)
    seen_after = [row[2:4] for row in rows[2:]]
    see.check("after it everything is", seen_after == [(2, 2), (1, 1)], seen_after)


@SCENARIO.step(
    "Aborted",
    narration="Something goes wrong in the middle, and the program aborts. The broker writes a marker "
    "behind the records; readers of committed data skip what it ends.",
    action="write 'wrong' in a transaction and abort it, then commit 'right'",
    prediction="'wrong' is in the log and only read_uncommitted sees it; the markers take an offset each",
)
def aborted(lab: Lab, see: Observation) -> None:
    sender = _transactional(lab, "transfer")
    sender.client.begin_transaction()
    sender.send("audit", "wrong")
    sender.flush()
    sender.client.abort_transaction(WAIT_SECONDS)
    sender.client.begin_transaction()
    sender.send("audit", "right")
    sender.client.commit_transaction(WAIT_SECONDS)
    committed = lab.read("audit", isolation_level="read_committed")
    everything = lab.read("audit", isolation_level="read_uncommitted")
    hidden = {record.offset for record in everything} - {record.offset for record in committed}
    see.table(
        ("offset", "value", "read_committed"),
        [
            (record.offset, record.value, "hidden" if record.offset in hidden else "seen")
            for record in everything
        ],
    )
    values = [record.value for record in committed]
    see.check("'wrong' is hidden", values == ["ann to bob: 5", "right"], values)
    see.check("it is still in the log", [record.value for record in everything][1] == "wrong", everything)
    offsets = [record.offset for record in everything]
    see.figure("offsets", offsets)
    see.check("a marker stands behind each transaction", offsets == [0, 2, 4], offsets)


@SCENARIO.step(
    "A zombie",
    narration="A program hangs in the middle of a transaction and is thought dead. Its successor starts "
    "with the same transactional.id. Then the first one wakes up and wants to commit.",
    action="open a transaction, start a second producer with the same id, let the first one commit",
    prediction="the first is fenced: its commit is refused and what it wrote never becomes visible",
)
def zombie(lab: Lab, see: Observation) -> None:
    before = len(_values(lab, "accounts", "read_committed"))
    old = _transactional(lab, "payments")
    old.client.begin_transaction()
    old.send("accounts", "from the zombie", "ann")
    old.flush()
    new = _transactional(lab, "payments")
    new.client.begin_transaction()
    new.send("accounts", "from the successor", "ann")
    new.client.commit_transaction(WAIT_SECONDS)
    refused = ""
    try:
        old.client.commit_transaction(WAIT_SECONDS)
    except KafkaException as fault:
        refused = fault.args[0].name()
    visible = _values(lab, "accounts", "read_committed")[before:]
    see.figure("refused_with", refused)
    see.say(f"The commit of the zombie was answered: {refused or 'accepted'}.")
    see.check(
        "the commit was refused because it is fenced", refused in ("_FENCED", "PRODUCER_FENCED"), refused
    )
    see.check("only the successor's record is visible", visible == ["from the successor"], visible)


@SCENARIO.step(
    "An open transaction holds readers back",
    narration="A read_committed reader cannot know how an open transaction will end, so it stops in "
    "front of it, even "
    f"if others write behind it. A transaction that is open for too long (here {TIMEOUT_MS / 1000:g} s) "
    f"is aborted.",
    action="leave a transaction open, write an ordinary record behind it, and wait",
    prediction="the ordinary record is held back until the timeout aborts the transaction",
)
def held_back(lab: Lab, see: Observation) -> None:
    before = len(_values(lab, "audit", "read_committed"))
    forgetful = _transactional(lab, "forgetful", transaction_timeout_ms=TIMEOUT_MS)
    forgetful.client.begin_transaction()
    forgetful.send("audit", "never committed")
    forgetful.flush()
    lab.produce("audit", ["ordinary"])
    position = lab.positions("audit")
    while_open = _values(lab, "audit", "read_committed")[before:]
    seconds = lab.wait(
        "the transaction has timed out", lambda: lab.positions("audit").last_stable > position.last_stable
    )
    afterwards = _values(lab, "audit", "read_committed")[before:]
    see.figure("seconds_held_back", round(seconds, 1))
    see.figure("last_stable_while_open", position.last_stable)
    see.figure("high_watermark_while_open", position.high_watermark)
    see.say(
        f"While it was open: last stable offset {position.last_stable}, high watermark "
        f"{position.high_watermark}. It was aborted {seconds:.1f} s later."
    )
    see.check("while it was open the ordinary record was held back", while_open == [], while_open)
    see.check("after the timeout only the ordinary record is visible", afterwards == ["ordinary"], afterwards)

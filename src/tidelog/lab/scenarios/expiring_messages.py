"""Expiring messages as a pattern: the record says until when it is good, and the consumer looks."""

import time

from confluent_kafka import Consumer

from tidelog.lab.clients import client_config, text
from tidelog.lab.group_view import committed
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.to_the_end import to_the_end

SHORT_MS = 1_500
LONG_MS = 60_000
OFFERS = 6

SCENARIO = Scenario(
    name="expiring-messages",
    title="Expiring messages",
    minutes=3,
    learn=(
        "retention removes old segments of a topic, not single records at their time",
        "a header can say until when a record is good; the consumer decides when it reads it",
        "what has expired is skipped and committed, and can be put aside to be counted",
    ),
    brokers=1,
    topics=(Topic("offers"), Topic("offers.expired")),
    summary="Put 'expires-ms' into the record, and check it where the record is used: there is no later "
    "moment.",
)


def _send_offers(lab: Lab) -> None:
    """Every other offer is good for a moment only."""
    sender = lab.sender()
    now_ms = int(time.time() * 1000)
    for number in range(OFFERS):
        good_for_ms = SHORT_MS if number % 2 else LONG_MS
        sender.send("offers", f"offer {number}", headers=[("expires-ms", str(now_ms + good_for_ms))])
    sender.flush()


def _work(lab: Lab, group: str) -> tuple[list[str], list[str]]:
    """Read to the end: what was still good, and what had expired. Expired offers are put aside."""
    options = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
    }
    consumer = Consumer(client_config(lab.bootstrap, options))
    used: list[str] = []
    expired: list[str] = []
    try:
        consumer.subscribe(["offers"])
        for message in to_the_end(consumer):
            value = text(message.value()) or ""
            expires_ms = int(text(dict(message.headers() or [])["expires-ms"]) or 0)
            if time.time() * 1000 < expires_ms:
                used.append(value)
            else:
                expired.append(value)
                lab.produce("offers.expired", [(group, value)])
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    return used, expired


@SCENARIO.step(
    "A consumer that is quick",
    narration=f"Six offers; every other one is good for {SHORT_MS / 1000} s only, the others for a minute.",
    action="send them to a consumer that waits for them",
    prediction="all six are used",
)
def quick(lab: Lab, see: Observation) -> None:
    anna = lab.start_consumer("anna", group="watching", topics=["offers"])
    anna.wait_assigned(1)
    _send_offers(lab)
    anna.wait_records(OFFERS)
    sent = {record.offset: record for record in lab.read("offers")}
    in_time = []
    for record in anna.records:
        headers = dict(sent[record.offset].headers)
        in_time.append(record.at * 1000 < int(headers["expires-ms"] or b"0"))
    see.figure("in_time", sum(in_time))
    see.say(f"{sum(in_time)} of {OFFERS} offers were read before they expired.")
    see.check("all six were read before they expired", in_time == [True] * OFFERS, in_time)


@SCENARIO.step(
    "A consumer that comes late",
    narration="Another group reads the same offers when the short ones are over.",
    action=f"wait until {SHORT_MS / 1000} s have passed, then run it",
    prediction="it uses three offers, skips three, and is not behind",
)
def late(lab: Lab, see: Observation) -> None:
    newest = max(record.timestamp_ms for record in lab.read("offers"))
    lab.wait("the short offers are over", lambda: time.time() * 1000 > newest + SHORT_MS)
    used, expired = _work(lab, "late")
    done = committed(lab, "late", "offers")
    see.table(("used", "expired"), [(", ".join(used), ", ".join(expired))])
    see.figure("used", len(used))
    see.figure("expired", len(expired))
    see.check("the long ones were used", used == ["offer 0", "offer 2", "offer 4"], used)
    see.check("the short ones were skipped", expired == ["offer 1", "offer 3", "offer 5"], expired)
    see.check("the group is not behind: expired is done, too", done == {0: OFFERS}, done)


@SCENARIO.step(
    "Nothing was removed",
    narration="The log still has all offers; expiry is in the eyes of the reader. What was skipped is "
    "in a topic of its own, so that somebody can see how much is lost that way.",
    action="read both topics",
    prediction="six offers in 'offers', three in 'offers.expired'",
)
def nothing_removed(lab: Lab, see: Observation) -> None:
    offers, aside = len(lab.read("offers")), [record.value for record in lab.read("offers.expired")]
    see.figure("offers", offers)
    see.say(f"{offers} offers are in the log, {len(aside)} were put aside.")
    see.figure("put_aside", len(aside))
    see.check("all six are in the log", offers == OFFERS, offers)
    see.check("three were put aside", aside == ["offer 1", "offer 3", "offer 5"], aside)

"""Kappa: the log is the truth. A corrected program replays it beside the old one, then readers switch."""

import json
from collections import Counter

from confluent_kafka import Consumer

from tidelog.lab.clients import client_config, text
from tidelog.lab.group_view import committed, lag
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.to_the_end import to_the_end

PARTITIONS = 2
CLICKS = 60
MORE_CLICKS = 30
PAGES = ("home", "shop", "help")
ROBOT_EVERY = 4
WAIT_SECONDS = 20.0
COMPACTED = {"cleanup.policy": "compact"}

SCENARIO = Scenario(
    name="kappa",
    title="Replay and switch (kappa)",
    minutes=5,
    learn=(
        "results can be computed again from the log, as long as it is kept",
        "the new version runs as another group into another topic, while the old one serves",
        "switching readers over is one small record; switching back is too",
    ),
    brokers=1,
    topics=(
        Topic("clicks", partitions=PARTITIONS),
        Topic("counts-v1", configs=COMPACTED),
        Topic("counts-v2", configs=COMPACTED),
        Topic("serving", configs=COMPACTED),
    ),
    summary="Keep the events, name results by the version that made them, and let readers follow a pointer.",
)


def _send_clicks(lab: Lab, start: int, count: int) -> None:
    clicks = []
    for number in range(start, start + count):
        who = "robot" if number % ROBOT_EVERY == 0 else "person"
        clicks.append((f"visitor-{number % 7}", json.dumps({"page": PAGES[number % len(PAGES)], "by": who})))
    lab.produce("clicks", clicks)


def _expected(count: int, *, robots: bool) -> dict[str, int]:
    return dict(Counter(PAGES[n % len(PAGES)] for n in range(count) if robots or n % ROBOT_EVERY))


def _table(lab: Lab, topic: str) -> dict[str, str]:
    """A compacted topic as a table: the newest value of each key."""
    return {record.key or "": record.value or "" for record in lab.read(topic)}


def _counts(lab: Lab, topic: str) -> dict[str, int]:
    return {page: int(count) for page, count in _table(lab, topic).items()}


def run_job(lab: Lab, version: str, *, robots: bool) -> int:
    """The counting program: go on from the group's offsets and the counts so far, up to the end.

    How many clicks it read.
    """
    counts = Counter(_counts(lab, f"counts-{version}"))
    options = {
        "group_id": f"counting-{version}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
    }
    consumer, clicks = Consumer(client_config(lab.bootstrap, options)), 0
    try:
        consumer.subscribe(["clicks"])
        for message in to_the_end(consumer, PARTITIONS):
            clicks += 1
            click = json.loads(text(message.value()) or "{}")
            counts[click["page"]] += robots or click["by"] == "person"
        lab.produce(f"counts-{version}", [(page, str(count)) for page, count in sorted(counts.items())])
        if clicks:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return clicks


def _seen_by_readers(lab: Lab) -> dict[str, int]:
    """What a reader of the counts gets: it follows the pointer."""
    return _counts(lab, _table(lab, "serving")["counts"])


@SCENARIO.step(
    "Version 1 serves",
    narration="Clicks are counted by page into the topic counts-v1. Readers ask the topic 'serving' "
    "which topic has the counts.",
    action=f"send {CLICKS} clicks, run version 1, point readers at counts-v1",
    prediction="readers see the counts of version 1",
)
def version_1(lab: Lab, see: Observation) -> None:
    _send_clicks(lab, 0, CLICKS)
    clicks = run_job(lab, "v1", robots=True)
    lab.produce("serving", [("counts", "counts-v1")])
    seen = _seen_by_readers(lab)
    see.figure("counts", seen)
    see.table(("page", "clicks, as readers see them"), sorted(seen.items()))
    see.check("it read every click", clicks == CLICKS, clicks)
    see.check("readers see what version 1 counts", seen == _expected(CLICKS, robots=True), seen)


@SCENARIO.step(
    "Replay",
    narration="Somebody notices: every fourth click is a robot's. Version 2 leaves those out. It is a "
    "new group, so it starts at the beginning of the log, and writes to a topic of its own.",
    action=f"run version 2 over everything, while {MORE_CLICKS} new clicks come and version 1 goes on",
    prediction="version 2 has the right counts for all clicks, old and new; readers still see version 1",
)
def replay(lab: Lab, see: Observation) -> None:
    replayed = run_job(lab, "v2", robots=False)
    _send_clicks(lab, CLICKS, MORE_CLICKS)
    old, caught_up = run_job(lab, "v1", robots=True), run_job(lab, "v2", robots=False)
    everything = CLICKS + MORE_CLICKS
    right, seen = _counts(lab, "counts-v2"), _seen_by_readers(lab)
    see.table(
        ("page", "version 1 (served)", "version 2"),
        [(page, seen.get(page), right.get(page)) for page in PAGES],
    )
    see.figure("replayed", replayed)
    see.check("version 2 replayed the log, then followed it", (replayed, caught_up) == (CLICKS, MORE_CLICKS))
    see.check("version 1 read only what was new", old == MORE_CLICKS, old)
    see.check("version 2 is right", right == _expected(everything, robots=False), right)
    see.check("readers still see version 1", seen == _expected(everything, robots=True), seen)


@SCENARIO.step(
    "Switch",
    narration="Version 2 has caught up: its lag is 0. The switch is one record in 'serving'.",
    action="point readers at counts-v2, then back, then at counts-v2 again",
    prediction="readers see the right counts at once, and can be switched back as easily",
)
def switch(lab: Lab, see: Observation) -> None:
    behind = lag(lab, "counting-v2", "clicks", PARTITIONS)
    seen = []
    targets = ("counts-v2", "counts-v1", "counts-v2")
    for target in targets:
        lab.produce("serving", [("counts", target)])
        seen.append(_seen_by_readers(lab))
    everything = CLICKS + MORE_CLICKS
    right, wrong = _expected(everything, robots=False), _expected(everything, robots=True)
    see.figure("lag_of_version_2", sum(behind.values()))
    see.table(
        ("pointer", *PAGES),
        [(to, *(row.get(page) for page in PAGES)) for to, row in zip(targets, seen, strict=True)],
    )
    see.check("version 2 was not behind", sum(behind.values()) == 0, behind)
    see.check("readers saw right, wrong, right counts", seen == [right, wrong, right], seen)


@SCENARIO.step(
    "Take the old one away",
    narration="When nobody needs version 1 any more, its topic and its group can go. The log stays.",
    action="delete counts-v1 and its group",
    prediction="readers notice nothing, and every click is still there for version 3",
)
def clean_up(lab: Lab, see: Observation) -> None:
    lab.admin().delete_topics(["counts-v1"])["counts-v1"].result(WAIT_SECONDS)
    lab.admin().delete_consumer_groups(["counting-v1"])["counting-v1"].result(WAIT_SECONDS)
    clicks = len(lab.read("clicks"))
    see.figure("clicks_in_the_log", clicks)
    see.say(f"{clicks} clicks are still in the log.")
    see.check("readers see the right counts", _seen_by_readers(lab) == _counts(lab, "counts-v2"))
    see.check("all clicks are still in the log", clicks == CLICKS + MORE_CLICKS, clicks)
    see.check("the old group is forgotten", committed(lab, "counting-v1", "clicks") == {})

"""Compaction: a topic as a table; the newest value of every key stays, and state is restored from it."""

import time

from tidelog.lab import log_files
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

KEYS = 8
ROUNDS = 40
ONE_AWAY = "sensor-3"

SCENARIO = Scenario(
    name="compaction",
    title="Compaction: a topic as a table",
    minutes=5,
    learn=(
        "cleanup.policy=compact keeps the newest record of every key, and its offset",
        "the active segment is not compacted: there you still see history",
        "a record without a value (a tombstone) deletes its key",
        "an application restores its state by reading the topic from the beginning",
    ),
    brokers=1,
    topics=(
        Topic(
            "sensors",
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": "4096",
                "min.cleanable.dirty.ratio": "0.01",
                "delete.retention.ms": "1000",
                "file.delete.delay.ms": "100",
            },
        ),
    ),
    settings={"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "300"},
    summary="a compacted topic is a table that you can replay: changelogs, settings, the offsets of groups",
)


def _table(records: list[tuple[str | None, str | None]]) -> dict[str | None, str]:
    """What an application that reads the topic from the beginning knows in the end."""
    state: dict[str | None, str] = {}
    for key, value in records:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


def _padding(lab: Lab, count: int) -> None:
    """Records of a key of their own that fill segments, so that what is before them is not active."""
    sender = lab.sender(batch_num_messages=4, linger_ms=10)
    for number in range(count):
        sender.send("sensors", f"padding {number} ".ljust(150, "."), "padding")
    sender.flush()


@SCENARIO.step(
    "Many updates of few keys",
    narration="Eight sensors report again and again. Only the newest report of each matters to somebody"
    " who wants to know how things are.",
    action=f"send {ROUNDS} rounds of reports of {KEYS} sensors, then fill the active segment",
    prediction=f"the log has {ROUNDS * KEYS} reports at first; soon the cleaner leaves far fewer",
)
def updates(lab: Lab, see: Observation) -> None:
    sender = lab.sender(batch_num_messages=4, linger_ms=10)
    for turn in range(ROUNDS):
        for number in range(KEYS):
            sender.send("sensors", f"report {turn} of sensor {number}", f"sensor-{number}")
    sent = sender.flush()
    full = [(delivery.key, delivery.value) for delivery in sorted(sent, key=lambda item: item.offset)]
    lab.notes["state"] = _table(full)
    bytes_before = _stored_bytes(lab)
    _padding(lab, 60)
    seconds = lab.wait("old reports are compacted away", lambda: _copies(lab, "sensor-0") == 1)
    kept = [record for record in lab.read("sensors") if record.key != "padding"]
    see.table(
        ("", "reports", "bytes"), [("sent", len(sent), bytes_before), ("kept", len(kept), _stored_bytes(lab))]
    )
    see.say(f"compacted {seconds:.1f} s after the last report")
    see.figure("reports_sent", len(sent))
    see.figure("reports_kept", len(kept))
    see.check("each sensor has one report left", len(kept) == KEYS, len(kept))
    newest = all(str(record.value).startswith(f"report {ROUNDS - 1} ") for record in kept)
    see.check("and it is the newest", newest, [record.value for record in kept])


def _stored_bytes(lab: Lab) -> int:
    return sum(item.header.size_bytes for item in log_files.batches(lab.partition_folder(1, "sensors")))


def _copies(lab: Lab, key: str) -> int:
    """How many records of a key a reader gets."""
    return sum(record.key == key for record in lab.read("sensors"))


@SCENARIO.step(
    "Offsets stay",
    narration="Compaction removes records; it does not number the rest anew. A consumer that knows an"
    " offset may rely on it, and one that asks for a missing offset gets the next that is there.",
    action="read the kept reports and look at their offsets",
    prediction="they are the offsets of sending, with gaps; reading at offset 0 begins at the first that"
    " is left",
)
def offsets_stay(lab: Lab, see: Observation) -> None:
    kept = [record for record in lab.read("sensors") if record.key != "padding"]
    see.table(("offset", "key", "value"), [(record.offset, record.key, record.value) for record in kept])
    wanted = list(range((ROUNDS - 1) * KEYS, ROUNDS * KEYS))
    found = sorted(record.offset for record in kept)
    see.check("the newest reports keep their offsets", found == wanted, found)
    first = lab.read("sensors", start_offset=0)[0]
    see.check("reading at 0 begins at the first that is left", first.offset == wanted[0], first.offset)


@SCENARIO.step(
    "State restored",
    narration="An application that kept the reports in memory crashed. It reads the topic from the"
    " beginning and knows as much as before, without reading all that ever was.",
    action="build the table from the compacted topic and compare it with that of all reports",
    prediction="the same table, from a fraction of the records",
)
def restored(lab: Lab, see: Observation) -> None:
    records = [(record.key, record.value) for record in lab.read("sensors") if record.key != "padding"]
    state = _table(records)
    see.say(f"{len(records)} records were read to know {len(state)} keys; {ROUNDS * KEYS} were sent")
    see.check("the restored table is the same", state == lab.notes["state"], state)


@SCENARIO.step(
    "A tombstone",
    narration="A record with a key and no value says: forget this key. Compaction keeps it for a while"
    " (delete.retention.ms), so that readers learn of it, and then removes it too.",
    action=f"send a tombstone for {ONE_AWAY}, and go on sending until the cleaner has been there twice",
    prediction="the key is gone from the table at once, and in the end from the log",
)
def tombstone(lab: Lab, see: Observation) -> None:
    lab.produce("sensors", [(ONE_AWAY, None)])
    state = _table([(record.key, record.value) for record in lab.read("sensors") if record.key != "padding"])
    see.check("a reader forgets the key at once", ONE_AWAY not in state and len(state) == KEYS - 1, state)
    began = time.monotonic()
    while _copies(lab, ONE_AWAY) and time.monotonic() - began < 30:
        _padding(lab, 30)
        time.sleep(0.3)
    left = _copies(lab, ONE_AWAY)
    see.say(f"nothing of {ONE_AWAY} was left after {time.monotonic() - began:.1f} s")
    see.check("in the end the log has neither report nor tombstone", left == 0, left)
    others = {record.key for record in lab.read("sensors")} - {"padding"}
    see.check("the other sensors are there", len(others) == KEYS - 1, others)

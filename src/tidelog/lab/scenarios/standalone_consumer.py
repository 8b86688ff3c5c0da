"""A consumer without a group: it chooses its partitions and remembers by itself how far it has come."""

import json
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition

from tidelog.lab.clients import client_config
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 3
RECORDS = 30
EACH = RECORDS // PARTITIONS
#: each partition has a measure per second from here on
FIRST_MS = 1_700_000_000_000
WAIT_SECONDS = 15.0

SCENARIO = Scenario(
    name="standalone-consumer",
    title="A consumer without a group",
    minutes=4,
    learn=(
        "assign() takes partitions without asking anybody; subscribe() asks a group",
        "standalone consumers do not share, are not rebalanced and leave no trace on the broker",
        "an offset that is stored together with the result makes the result exactly once",
    ),
    brokers=1,
    topics=(Topic("measures", partitions=PARTITIONS),),
    summary="Use a group to share work; use assign() to read given partitions, or to keep offsets "
    "beside your results.",
)


@SCENARIO.step(
    "Chosen partitions",
    narration="Thirty measures, ten in each of three partitions.",
    action="read partition 0 from the beginning and partition 2 from offset 6, with assign()",
    prediction="ten records of partition 0 and four of partition 2, none of partition 1",
)
def chosen(lab: Lab, see: Observation) -> None:
    sender = lab.sender()
    for number in range(RECORDS):
        partition, count = number % PARTITIONS, number // PARTITIONS
        sender.send(
            "measures", f"m{partition}-{count}", partition=partition, timestamp=FIRST_MS + count * 1_000
        )
    sender.flush()
    anna = lab.start_consumer("anna", partitions=[("measures", 0, 0), ("measures", 2, 6)], commit="none")
    anna.wait_records(EACH + 4)
    by_partition = dict.fromkeys(range(PARTITIONS), 0)
    for record in anna.records:
        by_partition[record.partition] += 1
    see.figure("records_by_partition", by_partition)
    see.table(("partition", "records it got"), sorted(by_partition.items()))
    see.check("it got what it chose, and nothing else", by_partition == {0: 10, 1: 0, 2: 4}, by_partition)


@SCENARIO.step(
    "A second one",
    narration="Two consumers of a group would share. These do not know each other.",
    action="start another consumer with the same partitions",
    prediction="it reads the same records; the first is not disturbed",
)
def second(lab: Lab, see: Observation) -> None:
    anna = lab.consumer_process("anna")
    before = len(anna.history)
    ben = lab.start_consumer("ben", partitions=[("measures", 0, 0), ("measures", 2, 6)], commit="none")
    ben.wait_records(EACH + 4)
    same = {record.value for record in anna.records} == {record.value for record in ben.records}
    see.figure("records_of_the_second", len(ben.records))
    see.say(f"The first has read {len(anna.records)} records, the second {len(ben.records)}.")
    see.check("both read the same records", same and len(ben.records) == EACH + 4, ben.records)
    see.check("the first was told nothing", len(anna.history) == before, anna.history[before:])
    groups = [group.group_id for group in lab.admin().list_consumer_groups().result(WAIT_SECONDS).valid]
    see.check("the cluster knows of no group", groups == [], groups)


@SCENARIO.step(
    "Back in time",
    narration="The position is the consumer's own. seek() moves it, to an offset or to a moment.",
    action="read partition 1 to its end, then seek to offset 5, and to the time of the record at offset 8",
    prediction="the next records are those at offsets 5 and 8",
)
def seek(lab: Lab, see: Observation) -> None:
    consumer = Consumer(client_config(lab.bootstrap, {"group_id": "seeker", "enable_auto_commit": False}))
    try:
        consumer.assign([TopicPartition("measures", 1, 0)])
        consumer.consume(num_messages=EACH, timeout=WAIT_SECONDS)
        consumer.seek(TopicPartition("measures", 1, 5))
        by_offset = [message.offset() for message in consumer.consume(num_messages=1, timeout=WAIT_SECONDS)]
        asked = TopicPartition("measures", 1, FIRST_MS + 8_000)
        found = consumer.offsets_for_times([asked], timeout=WAIT_SECONDS)
        consumer.seek(found[0])
        by_time = [message.offset() for message in consumer.consume(num_messages=1, timeout=WAIT_SECONDS)]
    finally:
        consumer.close()
    see.figure("after_seek_to_offset_5", by_offset)
    see.figure("after_seek_to_time", by_time)
    see.say(f"After the seek to offset 5 it read {by_offset}, after the seek to the time {by_time}.")
    see.check("after the first seek it read offset 5", by_offset == [5], by_offset)
    see.check("after the second it read offset 8", by_time == [8], by_time)


def _sum_into(path: Path, messages: list[Message]) -> None:
    """Add to the sum, and keep the offset with it: one file, replaced in one step."""
    state = json.loads(path.read_text()) if path.exists() else {"next_offset": 0, "sum": 0}
    for message in messages:
        value = message.value()
        assert isinstance(value, bytes)
        state = {
            "next_offset": (message.offset() or 0) + 1,
            "sum": state["sum"] + int(value.rsplit(b"-")[-1]),
        }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)


def _life(lab: Lab, path: Path, count: int, *, crash_before_writing: bool) -> None:
    """Read up to `count` records from where the file says, and write the new state, or die before that."""
    next_offset = json.loads(path.read_text())["next_offset"] if path.exists() else 0
    consumer = Consumer(client_config(lab.bootstrap, {"group_id": "summing", "enable_auto_commit": False}))
    try:
        consumer.assign([TopicPartition("measures", 0, next_offset)])
        messages = consumer.consume(num_messages=count, timeout=WAIT_SECONDS)
    finally:
        consumer.close()
    if not crash_before_writing:
        _sum_into(path, messages)


@SCENARIO.step(
    "Offset and result together",
    narration="The sum of the measures of partition 0 goes to a file, and the offset with it, in one "
    "step. So the two cannot disagree, whatever happens in between.",
    action="three lives: the first sums 4 records, the second dies before it writes, the third does the rest",
    prediction="each record is in the sum once: 0 + 1 + … + 9 = 45",
)
def own_offsets(lab: Lab, see: Observation) -> None:
    path = lab.folder / "sum.json"
    states = []
    for count, crash in ((4, False), (3, True), (6, False)):
        _life(lab, path, count, crash_before_writing=crash)
        states.append(json.loads(path.read_text()))
    lives = [(number, state["next_offset"], state["sum"]) for number, state in enumerate(states, 1)]
    see.table(("life", "next offset in the file", "sum in the file"), lives)
    see.figure("sum", states[-1]["sum"])
    see.check("the crash changed nothing", states[1] == states[0], states)
    see.check("each record was counted once", states[-1] == {"next_offset": EACH, "sum": 45}, states[-1])

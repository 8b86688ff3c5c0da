"""Offsets: commit after, every few records, before, or automatically; and `__consumer_offsets` read raw."""

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tidelog.groups.schemas import OffsetCommitKey, offset_commit_key, read_key, read_offset_commit_value
from tidelog.lab.clients import client_config
from tidelog.lab.consumers import ConsumerProcess
from tidelog.lab.group_view import committed
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.to_the_end import to_the_end

RECORDS = 10
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 4
#: a short session: the second life of a crashed consumer need not wait long for the first to be forgotten
QUICK: dict[str, Any] = {"session_timeout_ms": 1_000, "heartbeat_interval_ms": 200}

SCENARIO = Scenario(
    name="offsets",
    title="Offsets and commits",
    minutes=5,
    learn=(
        "a committed offset is where a group goes on after a restart",
        "whether a crash repeats or loses records depends on when the commit comes",
        "committed offsets are records of an ordinary topic",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=1),),
    settings={"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)},
    summary="Commit after the work: a crash may then repeat a little, and loses nothing.",
)


def _offsets_read(consumer: ConsumerProcess) -> list[int]:
    return [record.offset for record in consumer.records]


def _shown(consumer: ConsumerProcess) -> str:
    return " ".join(str(offset) for offset in _offsets_read(consumer)) or "none"


def _second_life(lab: Lab, name: str, group: str, count: int, **options: Any) -> ConsumerProcess:
    """The same group once more; waits for `count` records, or to the end where there are none."""
    again = lab.start_consumer(f"{name}-again", group=group, topics=["orders"], **{**QUICK, **options})
    again.wait_assigned(1)
    again.wait_records(count)
    return again


@SCENARIO.step(
    "Commit after each record",
    narration="Ten orders are in the topic, at offsets 0 to 9. A committed offset names the next record "
    "to read.",
    action="read them, commit after each, stop; then start the group again and send one more",
    prediction="the group's offset is 10, and the second life reads only the new order",
)
def after_each(lab: Lab, see: Observation) -> None:
    lab.produce("orders", [f"order {number}" for number in range(RECORDS)])
    first = lab.start_consumer("anna", group="after-each", topics=["orders"], **QUICK)
    first.wait(lambda consumer: consumer.commits.get(("orders", 0)) == RECORDS)
    first.stop()
    done = committed(lab, "after-each", "orders")
    lab.produce("orders", [f"order {RECORDS}"])
    again = _second_life(lab, "anna", "after-each", 1)
    again.stop()
    see.figure("committed", done.get(0))
    see.say(
        f"The group had committed {done.get(0)}; its second life read the offsets {_offsets_read(again)}."
    )
    see.check("the group's committed offset is 10", done == {0: RECORDS}, done)
    see.check(
        "the second life read offset 10 and nothing else", _offsets_read(again) == [RECORDS], again.records
    )


@SCENARIO.step(
    "Commit every four records",
    narration="Commits cost a request each, so programs commit now and then. Here the consumer dies at "
    "its tenth record, before the next commit.",
    action="commit every 4 records, crash at the 10th, start again",
    prediction="the last commit was 8, so the orders at 8 and 9 are read twice",
)
def every_four(lab: Lab, see: Observation) -> None:
    first = lab.start_consumer(
        "ben", group="every-four", topics=["orders"], commit_every=4, crash_at=10, **QUICK
    )
    first.wait_ended()
    done = committed(lab, "every-four", "orders")
    again = _second_life(lab, "ben", "every-four", 3)
    again.stop()
    twice = sorted(set(_offsets_read(first)) & set(_offsets_read(again)))
    see.figure("committed", done.get(0))
    see.figure("read_twice", twice)
    see.table(
        ("life", "offsets it read"),
        [(number, _shown(life)) for number, life in (("first", first), ("second", again))],
    )
    see.check("the committed offset was 8", done == {0: 8}, done)
    see.check("offsets 8 and 9 were read twice", twice == [8, 9], twice)
    see.check("nothing was left out", set(_offsets_read(first) + _offsets_read(again)) == set(range(11)))


@SCENARIO.step(
    "Commit before the work",
    narration="The other order: first commit, then work. The consumer dies between the two at its fifth "
    "record.",
    action="commit each record before it is processed, crash at the 5th, start again",
    prediction="the order at offset 4 is committed and was never processed: lost",
)
def before(lab: Lab, see: Observation) -> None:
    first = lab.start_consumer(
        "carla", group="before", topics=["orders"], commit="before", crash_at=5, **QUICK
    )
    first.wait_ended()
    done = committed(lab, "before", "orders")
    again = _second_life(lab, "carla", "before", 6)
    again.stop()
    processed = _offsets_read(first) + _offsets_read(again)
    lost = sorted(set(range(11)) - set(processed))
    see.figure("committed", done.get(0))
    see.figure("lost", lost)
    see.table(
        ("life", "offsets it processed"),
        [(number, _shown(life)) for number, life in (("first", first), ("second", again))],
    )
    see.check("the committed offset was 5", done == {0: 5}, done)
    see.check("exactly the order at offset 4 was lost", lost == [4], lost)
    see.check("nothing was processed twice", len(processed) == len(set(processed)), processed)


@SCENARIO.step(
    "Automatic commits",
    narration="With enable.auto.commit (the default) the client commits in the background what it has "
    "handed out, finished or not. Here each order takes 3 s of work, and the client commits every 0.3 s.",
    action="let it work on the first order, kill it as soon as the group's offset is 1, start again",
    prediction="the order at offset 0 was in work when it was committed: lost",
)
def automatic(lab: Lab, see: Observation) -> None:
    options = {**QUICK, "auto_commit_interval_ms": 300}
    first = lab.start_consumer(
        "dan", group="automatic", topics=["orders"], commit="auto", work_ms=3_000, **options
    )
    seconds = lab.wait(
        "the client has committed", lambda: committed(lab, "automatic", "orders") == {0: 1}, 10
    )
    lab.faults.kill_consumer("dan")
    again = _second_life(lab, "dan", "automatic", 10)
    again.stop()
    see.figure("seconds_to_the_commit", round(seconds, 1))
    see.say(
        f"Offset 1 was committed {seconds:.1f} s after the start, while the order at 0 was still in work."
    )
    see.say(f"The second life read the offsets {_shown(again)}.")
    see.check("the first life finished nothing", _offsets_read(first) == [], first.records)
    first_read = _offsets_read(again)[0] if again.records else None
    see.check("the second life began at offset 1: offset 0 is lost", first_read == 1, first_read)


def _raw_commits(lab: Lab) -> list[tuple[int, int, bytes, bytes | None]]:
    """Partition, offset, key and value of every record of `__consumer_offsets` that holds an offset."""
    consumer = Consumer(
        client_config(
            lab.bootstrap,
            {"group_id": "raw", "enable_auto_commit": False, "enable_partition_eof": True},
        )
    )
    found: list[tuple[int, int, bytes, bytes | None]] = []
    try:
        consumer.assign(
            [TopicPartition(OFFSETS_TOPIC, number, OFFSET_BEGINNING) for number in range(OFFSETS_PARTITIONS)]
        )
        for message in to_the_end(consumer, OFFSETS_PARTITIONS):
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(read_key(key), OffsetCommitKey):
                place = (message.partition() or 0, message.offset() or 0)
                found.append((*place, key, value if isinstance(value, bytes) else None))
    finally:
        consumer.close()
    return found


def _java_hash(text: str) -> int:
    """What Java's String.hashCode gives for ASCII, made positive as Kafka does."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


@SCENARIO.step(
    "Where offsets are kept",
    narration="Committed offsets are records of the topic __consumer_offsets: the key says which group, "
    "topic and partition, the value which offset. It is compacted, so only the newest of each key matters.",
    action="read __consumer_offsets like any topic, as bytes",
    prediction="each commit of the steps before is there, and the newest says what the coordinator says",
)
def raw(lab: Lab, see: Observation) -> None:
    records = _raw_commits(lab)
    newest: dict[str, int] = {}
    homes: dict[str, int] = {}
    for partition, _, key, value in records:
        named = read_key(key)
        if isinstance(named, OffsetCommitKey) and value is not None:
            newest[named.group_id] = read_offset_commit_value(value).offset
            homes[named.group_id] = partition
    rows = [(group, homes[group], newest[group]) for group in sorted(newest)]
    see.table((f"group (key in {OFFSETS_TOPIC})", "in its partition", "newest offset"), rows)
    key = offset_commit_key("every-four", "orders", 0)
    commits = [value for _, _, found, value in records if found == key and value is not None]
    if commits:
        first = commits[0]
        see.lines(f"key    {key.hex(' ')}\n       version 1, group 'every-four', topic 'orders', partition 0")
        see.lines(
            f"value  {first.hex(' ')}\n       version {int.from_bytes(first[:2], 'big')}, offset "
            f"{int.from_bytes(first[2:10], 'big')}, leader epoch, metadata, time of the commit"
        )
    see.figure("offset_records", len(records))
    by_group = [read_offset_commit_value(value).offset for value in commits]
    see.check(
        "the commits of 'every-four' are 4, 8, and then those of its second life",
        by_group[:2] == [4, 8],
        by_group,
    )
    told = {group: committed(lab, group, "orders").get(0) for group in newest}
    see.check(
        "the newest record of every group is what the coordinator answers", told == newest, (told, newest)
    )
    expected = {group: _java_hash(group) % OFFSETS_PARTITIONS for group in homes}
    see.check("a group lives in the partition that its name hashes to", homes == expected, (homes, expected))

"""auto.offset.reset: where a group starts without a committed offset, or with one that is gone."""

from confluent_kafka import Consumer, TopicPartition

from tidelog.lab.clients import client_config
from tidelog.lab.group_view import committed
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

RECORDS = 10
KEPT_FROM = 5
WAIT_SECONDS = 15.0

SCENARIO = Scenario(
    name="auto-offset-reset",
    title="Where a new group starts",
    minutes=4,
    learn=(
        "without a committed offset, auto.offset.reset decides: earliest, latest, or an error",
        "with one it is not asked",
        "it is asked again when the committed offset is no longer in the log",
    ),
    brokers=1,
    topics=(Topic("events", partitions=1),),
    summary="latest (the default) skips what is already there: use earliest where every record counts.",
)


@SCENARIO.step(
    "earliest",
    narration="Ten events are in the topic when a new group comes.",
    action="start a consumer with auto.offset.reset=earliest",
    prediction="it reads all ten",
)
def earliest(lab: Lab, see: Observation) -> None:
    lab.produce("events", [f"event {number}" for number in range(RECORDS)])
    anna = lab.start_consumer("anna", group="with-earliest", topics=["events"])
    anna.wait(lambda consumer: consumer.commits.get(("events", 0)) == RECORDS)
    anna.stop()
    offsets = [record.offset for record in anna.records]
    see.figure("read", len(offsets))
    see.say(f"It read {len(offsets)} events, from offset {offsets[:1]} to {offsets[-1:]}.")
    see.check("it read offsets 0 to 9", offsets == list(range(RECORDS)), offsets)


@SCENARIO.step(
    "latest",
    narration="latest is the default of most clients: only what comes from now on.",
    action="start a consumer with auto.offset.reset=latest, then send two more events",
    prediction="it reads the two new ones and none of the ten",
)
def latest(lab: Lab, see: Observation) -> None:
    options = client_config(
        lab.bootstrap,
        {
            "group_id": "with-latest",
            "auto_offset_reset": "latest",
            "enable_auto_commit": False,
            "enable_partition_eof": True,
        },
    )
    ben = Consumer(options)
    try:
        ben.subscribe(["events"])
        # the client says where it found the end: what is sent from now on is new to it
        at_end = [message.offset() for message in ben.consume(num_messages=1, timeout=WAIT_SECONDS)]
        lab.produce("events", ["event 10", "event 11"])
        found = ben.consume(num_messages=2, timeout=WAIT_SECONDS)
        offsets = [message.offset() for message in found if message.error() is None]
    finally:
        ben.close()
    see.figure("started_at", at_end)
    see.say(f"It started at the end, offset {at_end}, and read {offsets}.")
    see.figure("read", offsets)
    see.check("it started at the end, 10", at_end == [RECORDS], at_end)
    see.check("it read offsets 10 and 11 only", offsets == [10, 11], offsets)


@SCENARIO.step(
    "error",
    narration="Where starting at the wrong place would be worse than not starting: error (Java: none).",
    action="start a consumer with auto.offset.reset=error",
    prediction="it gets an error and no record",
)
def error(lab: Lab, see: Observation) -> None:
    options = client_config(
        lab.bootstrap,
        {"group_id": "with-error", "auto_offset_reset": "error", "enable_auto_commit": False},
    )
    carla = Consumer(options)
    try:
        carla.subscribe(["events"])
        found = carla.consume(num_messages=1, timeout=WAIT_SECONDS)
    finally:
        carla.close()
    told = [fault.name() if (fault := message.error()) is not None else "a record" for message in found]
    see.figure("told", told)
    see.say(f"It was told: {told}.")
    see.check("it was told that there is no offset to start from", told == ["_AUTO_OFFSET_RESET"], told)


@SCENARIO.step(
    "With a committed offset",
    narration="The first group has committed offset 10. The setting is now 'latest' for it.",
    action="start the group of the first step again, with auto.offset.reset=latest",
    prediction="it goes on at 10: the setting is not asked",
)
def not_asked(lab: Lab, see: Observation) -> None:
    before = committed(lab, "with-earliest", "events")
    dan = lab.start_consumer("dan", group="with-earliest", topics=["events"], auto_offset_reset="latest")
    dan.wait(lambda consumer: consumer.commits.get(("events", 0)) == RECORDS + 2)
    dan.stop()
    offsets = [record.offset for record in dan.records]
    see.figure("read", offsets)
    see.say(f"The group had committed {before.get(0)}; it read {offsets}.")
    see.check("the committed offset was 10", before == {0: RECORDS}, before)
    see.check("it read offsets 10 and 11, which came before it started", offsets == [10, 11], offsets)


@SCENARIO.step(
    "An offset that is gone",
    narration="A group that was away for long may find that retention has deleted what it wanted to "
    "read next.",
    action="let a group commit offset 2, delete everything below 5, start the group with earliest",
    prediction="it goes on at 5, the first event that is left; 2, 3 and 4 are lost to it",
)
def gone(lab: Lab, see: Observation) -> None:
    away = Consumer(client_config(lab.bootstrap, {"group_id": "away", "enable_auto_commit": False}))
    try:
        away.commit(offsets=[TopicPartition("events", 0, 2)], asynchronous=False)
    finally:
        away.close()
    deleted = lab.admin().delete_records([TopicPartition("events", 0, KEPT_FROM)])
    for future in deleted.values():
        future.result(WAIT_SECONDS)
    log_start = lab.positions("events").log_start
    eva = lab.start_consumer("eva", group="away", topics=["events"])
    eva.wait_records(RECORDS + 2 - KEPT_FROM)
    eva.stop()
    offsets = [record.offset for record in eva.records]
    see.figure("log_start", log_start)
    see.say(f"The log begins at {log_start}; the group read {offsets}.")
    see.figure("first_read", offsets[0] if offsets else None)
    see.check("the log begins at 5 now", log_start == KEPT_FROM, log_start)
    see.check("the group went on at 5", offsets == list(range(KEPT_FROM, RECORDS + 2)), offsets)

"""Lag: how far a group is behind, what makes it grow, and what makes it fall."""

from tidelog.lab.group_view import committed, lag
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 2
BACKLOG = 60
WORK_MS = 60

SCENARIO = Scenario(
    name="lag",
    title="Lag",
    minutes=4,
    learn=(
        "lag is the end of the log minus the committed offset, for each partition",
        "it grows while records come faster than they are processed",
        "more consumers make it fall, as long as there are partitions for them",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=PARTITIONS),),
    summary="Watch the lag of every group: it is the first thing to grow when something is wrong.",
)


def _total(lab: Lab) -> int:
    return sum(lag(lab, "billing", "orders", PARTITIONS).values())


def _send(lab: Lab, count: int) -> None:
    for partition in range(PARTITIONS):
        lab.produce(
            "orders", [f"order {number}" for number in range(count // PARTITIONS)], partition=partition
        )


@SCENARIO.step(
    "No lag",
    narration="A consumer that keeps up is behind by nothing.",
    action="send 4 orders to a consumer that is quick",
    prediction="the lag is 0 once it has committed",
)
def keeps_up(lab: Lab, see: Observation) -> None:
    anna = lab.start_consumer("anna", group="billing", topics=["orders"])
    anna.wait_assigned(PARTITIONS)
    _send(lab, 4)
    anna.wait(lambda consumer: sum(consumer.commits.values()) == 4)
    behind = lag(lab, "billing", "orders", PARTITIONS)
    see.figure("lag", behind)
    see.say(f"Lag by partition: {behind}.")
    see.check("the lag of both partitions is 0", behind == {0: 0, 1: 0}, behind)


@SCENARIO.step(
    "The consumer is away",
    narration="Stop the consumer; producers do not notice, the log just grows.",
    action=f"stop the consumer and send {BACKLOG} orders",
    prediction=f"the lag becomes {BACKLOG}",
)
def away(lab: Lab, see: Observation) -> None:
    lab.faults.stop_consumer("anna")
    _send(lab, BACKLOG)
    rows = []
    behind = lag(lab, "billing", "orders", PARTITIONS)
    done = committed(lab, "billing", "orders")
    for number in range(PARTITIONS):
        end = lab.positions("orders", number).high_watermark
        rows.append((number, end, done.get(number, 0), behind[number]))
    see.table(("partition", "end of the log", "committed", "lag"), rows)
    see.figure("lag", sum(behind.values()))
    see.check(f"the lag is {BACKLOG}", sum(behind.values()) == BACKLOG, behind)
    see.check(
        "end minus committed is the lag, row by row", all(row[1] - row[2] == row[3] for row in rows), rows
    )


@SCENARIO.step(
    "A slow consumer",
    narration=f"The consumer comes back, but now each order takes {WORK_MS} ms. New orders come all the "
    f"time.",
    action="start it, and send 10 more orders while it works on its first 10",
    prediction="it works, and the lag does not fall below what it was",
)
def slow(lab: Lab, see: Observation) -> None:
    before = _total(lab)
    anna = lab.start_consumer("anna", group="billing", topics=["orders"], work_ms=WORK_MS)
    lab.wait("it has done 10 orders", lambda: len(anna.records) >= 10)
    lab.faults.pause_consumer("anna")
    _send(lab, 10)
    done, behind = len(anna.records), _total(lab)
    lab.faults.resume_consumer("anna")
    see.figure("done", done)
    see.figure("lag_before", before)
    see.figure("lag_after", behind)
    see.say(f"It has done {done} orders, 10 new ones came: the lag went from {before} to {behind}.")
    # the commit of the record in hand may or may not have been answered when it was paused
    see.check("the lag is what came minus what was done", 0 <= before + 10 - behind - (done - 1) <= 2, behind)


@SCENARIO.step(
    "Two consumers",
    narration="There are two partitions, so a second consumer can take half of the work.",
    action="start a second consumer in the group",
    prediction="each has one partition, and the lag falls to 0",
)
def two(lab: Lab, see: Observation) -> None:
    before = _total(lab)
    anna = lab.consumer_process("anna")
    ben = lab.start_consumer("ben", group="billing", topics=["orders"], work_ms=WORK_MS)
    lab.wait("they share", lambda: len(anna.assignment) == len(ben.assignment) == 1)
    seconds = lab.wait("the lag is 0", lambda: _total(lab) == 0)
    see.figure("lag_before", before)
    see.figure("seconds_to_zero", round(seconds, 1))
    see.table(("consumer", "orders done"), [(one.name, len(one.records)) for one in (anna, ben)])
    see.check("the group has caught up", lag(lab, "billing", "orders", PARTITIONS) == {0: 0, 1: 0})
    see.check("both did a part", bool(anna.records) and bool(ben.records))

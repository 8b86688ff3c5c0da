"""Total order: there is none across partitions; one partition has it; how to make it again."""

import heapq
from collections.abc import Iterable
from itertools import pairwise

from tidelog.lab.clients import ReadRecord
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 4
RECORDS = 40
FIRST_MS = 1_700_000_000_000

SCENARIO = Scenario(
    name="total-order",
    title="Total order",
    minutes=4,
    learn=(
        "order holds inside a partition, not across partitions",
        "one partition is a total order, the same for every reader, at the price of one consumer per group",
        "order across partitions can be made again by time, if you can say how late a record may be",
    ),
    brokers=1,
    topics=(Topic("spread", partitions=PARTITIONS), Topic("single", partitions=1)),
    summary="First ask whether order per key is enough: it usually is, and it scales.",
)


def _numbers(records: Iterable[ReadRecord]) -> list[int]:
    return [int(record.value or -1) for record in records]


def out_of_order(numbers: list[int]) -> int:
    """How many come directly after a larger one."""
    return sum(1 for before, after in pairwise(numbers) if after < before)


@SCENARIO.step(
    "Four partitions",
    narration="Events 0 to 39, one a second, go to four partitions in turn. Two readers read them: one "
    "is behind in the first partitions, the other in the last.",
    action="read the partitions in two ways",
    prediction="inside each partition the order holds; over all of them the two readers disagree",
)
def spread(lab: Lab, see: Observation) -> None:
    sender = lab.sender()
    for number in range(RECORDS):
        sender.send("spread", str(number), partition=number % PARTITIONS, timestamp=FIRST_MS + number * 1_000)
    sender.flush()
    by_partition = {number: lab.read("spread", partitions=[number]) for number in range(PARTITIONS)}
    forwards = _numbers(record for number in range(PARTITIONS) for record in by_partition[number])
    backwards = _numbers(record for number in reversed(range(PARTITIONS)) for record in by_partition[number])
    see.table(
        ("reader", "the first events it sees", "out of order"),
        [
            ("first", " ".join(map(str, forwards[:14])) + " …", out_of_order(forwards)),
            ("second", " ".join(map(str, backwards[:14])) + " …", out_of_order(backwards)),
        ],
    )
    inside = [out_of_order(_numbers(records)) for records in by_partition.values()]
    lab.notes["spread"] = by_partition
    see.check("inside every partition nothing is out of order", inside == [0] * PARTITIONS, inside)
    see.check(
        "the readers saw the same events", sorted(forwards) == sorted(backwards) == list(range(RECORDS))
    )
    see.check("in different orders", forwards != backwards and out_of_order(forwards) > 0)


@SCENARIO.step(
    "One partition",
    narration="The same events in a topic with one partition. Its log is a total order.",
    action="read it with two readers",
    prediction="both see 0 to 39 in order",
)
def single(lab: Lab, see: Observation) -> None:
    lab.produce("single", [str(number) for number in range(RECORDS)])
    readers = [_numbers(lab.read("single")) for _ in range(2)]
    see.figure("out_of_order", [out_of_order(numbers) for numbers in readers])
    see.check("both saw all events in order", readers == [list(range(RECORDS))] * 2, readers)
    anna = lab.start_consumer("anna", group="sharing", topics=["single"])
    anna.wait_assigned(1)
    ben = lab.start_consumer("ben", group="sharing", topics=["single"])
    lab.wait("both were dealt with", lambda: anna.assigned_times + ben.assigned_times >= 3)
    shares = sorted((len(anna.assignment), len(ben.assignment)))
    see.figure("shares", shares)
    see.say(
        f"Both readers saw 0 to {RECORDS - 1} in order. Partitions of anna and ben in one group: {shares}."
    )
    see.check("the price: of two consumers of a group one has nothing to do", shares == [0, 1], shares)


def reordered(by_partition: dict[int, list[ReadRecord]], late_ms: int) -> tuple[list[int], int]:
    """The events by time, as a program does it that reads the partitions in turn and holds each event back.

    An event is let go when every partition has shown something that is `late_ms` newer, or has ended. Also
    how many events were held at the same time at most.
    """
    held: list[tuple[int, int]] = []
    newest = dict.fromkeys(by_partition, 0)
    released: list[int] = []
    held_max = 0
    # uneven on purpose: three from the first partition for each one of the last
    positions = dict.fromkeys(by_partition, 0)
    while any(positions[number] < len(records) for number, records in by_partition.items()):
        for number, records in by_partition.items():
            for record in records[positions[number] : positions[number] + (3 if number == 0 else 1)]:
                heapq.heappush(held, (record.timestamp_ms, int(record.value or -1)))
                newest[number] = record.timestamp_ms
                positions[number] += 1
        open_partitions = [n for n, records in by_partition.items() if positions[n] < len(records)]
        watermark = min((newest[number] for number in open_partitions), default=max(newest.values()))
        held_max = max(held_max, len(held))
        while held and held[0][0] <= watermark - late_ms:
            released.append(heapq.heappop(held)[1])
    released.extend(heapq.heappop(held)[1] for _ in range(len(held)))
    return released, held_max


@SCENARIO.step(
    "Back in order",
    narration="Where the events are spread and order is needed, a program can hold them back for a "
    "while and let them go by their time. It has to know how late an event may be. Spark's watermarks "
    "do this on a cluster: the scenario spark-pipeline shows it.",
    action="read the four partitions unevenly, and let events go by time",
    prediction="all 40 come out in order, with only some of them held at a time",
)
def back_in_order(lab: Lab, see: Observation) -> None:
    by_partition: dict[int, list[ReadRecord]] = lab.notes["spread"]
    numbers, held_max = reordered(by_partition, late_ms=0)
    see.figure("out_of_order", out_of_order(numbers))
    see.figure("held_at_most", held_max)
    see.say(
        f"Out of order: {out_of_order(numbers)}; at most {held_max} of {RECORDS} events were held at a time."
    )
    see.check("all events came out in order", numbers == list(range(RECORDS)), numbers)
    see.check("fewer than all were held", held_max < RECORDS, held_max)

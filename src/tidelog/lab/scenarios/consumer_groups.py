"""Consumer groups: 1, 2, 4, then 5 consumers on 4 partitions, and a second group beside them."""

from collections import Counter

from tidelog.lab.consumers import ConsumerProcess
from tidelog.lab.group_view import committed
from tidelog.lab.group_view import members as members_of
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 4
RECORDS = 40
SETTLE_SECONDS = 15.0
NAMES = ("anna", "ben", "carla", "dan", "eva")

SCENARIO = Scenario(
    name="consumer-groups",
    title="Consumer groups",
    minutes=4,
    learn=(
        "consumers of one group share the partitions of a topic",
        "a partition has one reader in a group, so more consumers than partitions leave some idle",
        "another group reads everything for itself",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=PARTITIONS),),
    summary="The number of partitions is the largest number of consumers of one group that can work at "
    "a time.",
)


def _members(lab: Lab, count: int) -> list[ConsumerProcess]:
    """The first `count` members of the group, started where they are not there yet."""
    running: list[ConsumerProcess] = lab.notes.setdefault("members", [])
    for name in NAMES[len(running) : count]:
        running.append(
            lab.start_consumer(name, group="billing", topics=["orders"], group_protocol="consumer")
        )
    return running


def _shares(members: list[ConsumerProcess]) -> list[int]:
    return sorted((len(member.assignment) for member in members), reverse=True)


def _committed_by(members: list[ConsumerProcess]) -> int:
    return sum(offset for member in members for offset in member.commits.values())


def _show_shares(
    lab: Lab, see: Observation, count: int, expected: list[int], claim: str
) -> list[ConsumerProcess]:
    members = _members(lab, count)
    lab.wait(
        f"the group has {count} members", lambda: len(members_of(lab, "billing")) == count, SETTLE_SECONDS
    )
    lab.wait(f"the shares are {expected}", lambda: _shares(members) == expected, SETTLE_SECONDS)
    see.table(
        ("consumer", "partitions"),
        [
            (member.name, " ".join(str(number) for _, number in member.assignment) or "none")
            for member in members
        ],
    )
    shares = _shares(members)
    see.figure("shares", shares)
    see.check(claim, shares == expected, f"shares {shares}")
    owned = Counter(place for member in members for place in member.assignment)
    see.check(
        "every partition has exactly one reader",
        len(owned) == PARTITIONS and set(owned.values()) == {1},
        dict(owned),
    )
    return members


@SCENARIO.step(
    "One consumer",
    narration="Consumers that give the same group.id form a group. The topic 'orders' has four partitions.",
    action="start the consumer anna in the group 'billing'",
    prediction="anna reads all four partitions",
)
def one(lab: Lab, see: Observation) -> None:
    _show_shares(lab, see, 1, [4], "one consumer has all four partitions")


@SCENARIO.step(
    "Two consumers",
    narration="A second member joins. Nobody tells anna: the group deals its partitions out anew.",
    action="start ben in the same group",
    prediction="two partitions each",
)
def two(lab: Lab, see: Observation) -> None:
    _show_shares(lab, see, 2, [2, 2], "two consumers have two partitions each")


@SCENARIO.step(
    "Four consumers",
    narration="As many consumers as partitions: this is as far as the work can be shared.",
    action="start carla and dan",
    prediction="one partition each",
)
def four(lab: Lab, see: Observation) -> None:
    _show_shares(lab, see, 4, [1, 1, 1, 1], "four consumers have one partition each")


@SCENARIO.step(
    "Five consumers",
    narration="A partition is never split between two readers of a group, because its order would be lost.",
    action="start eva",
    prediction="one consumer has nothing to do",
)
def five(lab: Lab, see: Observation) -> None:
    _show_shares(lab, see, 5, [1, 1, 1, 1, 0], "the fifth consumer has no partition")


@SCENARIO.step(
    "Records come",
    narration="Forty orders, ten in each partition.",
    action=f"send {RECORDS} records, the same number to each partition",
    prediction="each order is read once, by one of the four; the fifth reads nothing",
)
def records(lab: Lab, see: Observation) -> None:
    members = _members(lab, 5)
    for partition in range(PARTITIONS):
        numbers = range(partition, RECORDS, PARTITIONS)
        lab.produce("orders", [(None, f"order {number}") for number in numbers], partition=partition)
    lab.wait("all records are read", lambda: sum(len(member.records) for member in members) >= RECORDS)
    counts = sorted((len(member.records) for member in members), reverse=True)
    seen = Counter(record.value for member in members for record in member.records)
    see.table(("consumer", "records read"), [(member.name, len(member.records)) for member in members])
    see.figure("records_read", counts)
    see.check("each order was read exactly once", len(seen) == RECORDS and set(seen.values()) == {1}, seen)
    see.check("four consumers read ten each, one nothing", counts == [10, 10, 10, 10, 0], counts)
    lab.wait("all commits are answered", lambda: _committed_by(members) == RECORDS)
    done = committed(lab, "billing", "orders")
    see.check("the group has written down that all forty are done", sum(done.values()) == RECORDS, done)


@SCENARIO.step(
    "The idle one takes over",
    narration="Idle is not useless: eva is a spare.",
    action="stop anna",
    prediction="the spare gets anna's partition",
)
def spare(lab: Lab, see: Observation) -> None:
    members = _members(lab, 5)
    leaving = members[0]
    lab.faults.stop_consumer(leaving.name)
    staying = members[1:]
    lab.wait("all have one partition", lambda: _shares(staying) == [1, 1, 1, 1], SETTLE_SECONDS)
    see.table(
        ("consumer", "partitions"),
        [(member.name, " ".join(str(number) for _, number in member.assignment)) for member in staying],
    )
    see.check(
        "the four that are left have one partition each", _shares(staying) == [1, 1, 1, 1], _shares(staying)
    )


@SCENARIO.step(
    "Another group",
    narration="Reading removes nothing. What one group has read does not matter to another.",
    action="start a consumer in the group 'statistics', from the beginning",
    prediction="it reads all forty orders again",
)
def another_group(lab: Lab, see: Observation) -> None:
    other = lab.start_consumer("zoe", group="statistics", topics=["orders"])
    other.wait_records(RECORDS)
    see.figure("records_of_the_other_group", len(other.records))
    see.say(f"zoe, alone in the other group, read {len(other.records)} records.")
    values = {record.value for record in other.records}
    see.check(
        "the other group got all forty", len(values) == RECORDS == len(other.records), len(other.records)
    )
    before = committed(lab, "billing", "orders")
    see.check("the first group's offsets are what they were", sum(before.values()) == RECORDS, before)

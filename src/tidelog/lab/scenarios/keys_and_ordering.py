"""Keys and ordering: the same key, the same partition, in order; across partitions there is no order."""

from collections import defaultdict

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

TAXIS = ("taxi-1", "taxi-2", "taxi-3", "taxi-4", "taxi-5", "taxi-6")
POSITIONS_PER_TAXI = 5

SCENARIO = Scenario(
    name="keys-and-ordering",
    title="Keys and ordering",
    minutes=4,
    learn=(
        "records with the same key go to the same partition",
        "within a partition, and so for one key, the order of sending stays",
        "across partitions there is no order that you may rely on",
        "more partitions send keys elsewhere, so choose their number early",
    ),
    brokers=1,
    topics=(Topic("rides", partitions=4),),
    summary="order is a promise within a partition; give things that must stay in order the same key",
)


@SCENARIO.step(
    "One key, one partition",
    narration="A topic has partitions, each a log of its own. The producer chooses the partition of a"
    " record: it hashes the key and takes the remainder by the number of partitions.",
    action="send 20 positions of the taxi with the key 'taxi-1'",
    prediction="all 20 land in one partition, at rising offsets in the order of sending",
)
def one_key(lab: Lab, see: Observation) -> None:
    sent = lab.produce("rides", [("taxi-1", f"position {number}") for number in range(20)])
    used = sorted({delivery.partition for delivery in sent})
    see.figure("partitions_used", len(used))
    see.say(f"partition {used[0]} has them all: offsets {sent[0].offset} to {sent[-1].offset}")
    see.check("all 20 records are in one partition", len(used) == 1, f"they are in {used}")
    stored = [record.value for record in lab.read("rides", partitions=used)]
    wanted = [f"position {number}" for number in range(20)]
    see.check("the log has them in the order of sending", stored == wanted, stored)


@SCENARIO.step(
    "Many keys, many partitions",
    narration="Six taxis send in turn, as vehicles in a city do. Each taxi has its own key.",
    action=f"send {POSITIONS_PER_TAXI} rounds of positions of six taxis, one after the other",
    prediction="every taxi stays in one partition and in order; different taxis share partitions or not",
)
def many_keys(lab: Lab, see: Observation) -> None:
    rounds = [(taxi, f"{taxi} at {turn}") for turn in range(POSITIONS_PER_TAXI) for taxi in TAXIS[1:]]
    sent = lab.produce("rides", rounds)
    places: dict[str, set[int]] = defaultdict(set)
    for delivery in sent:
        places[str(delivery.key)].add(delivery.partition)
    see.table(("key", "partition"), [(taxi, *sorted(found)) for taxi, found in sorted(places.items())])
    lab.notes["partition_of"] = {taxi: min(found) for taxi, found in places.items()}
    see.figure("partitions_used", len(set().union(*places.values())))
    see.check(
        "every key is in exactly one partition", all(len(found) == 1 for found in places.values()), places
    )
    read = lab.read("rides")
    for taxi in TAXIS[1:]:
        values = [record.value for record in read if record.key == taxi]
        if values != [f"{taxi} at {turn}" for turn in range(POSITIONS_PER_TAXI)]:
            see.check(f"{taxi} is read in the order of sending", False, values)
            return
    see.check("every taxi is read in the order of its sending", True)


@SCENARIO.step(
    "No order across partitions",
    narration="A consumer of the whole topic gets records of one partition after those of another, as they"
    " arrive. So what it reads is not what was sent in turn.",
    action="read the whole topic and compare the order with that of sending",
    prediction="the order differs from that of sending, yet not within any partition",
)
def no_order_across(lab: Lab, see: Observation) -> None:
    read = [record for record in lab.read("rides") if record.key != "taxi-1"]
    sent = [f"{taxi} at {turn}" for turn in range(POSITIONS_PER_TAXI) for taxi in TAXIS[1:]]
    see.lines(
        "sent  " + " | ".join(sent[:6]) + " …\nread  " + " | ".join(str(r.value) for r in read[:6]) + " …"
    )
    see.check("the whole is not read as it was sent", [record.value for record in read] != sent)
    rising = all(
        [record.offset for record in read if record.partition == number]
        == sorted(record.offset for record in read if record.partition == number)
        for number in range(4)
    )
    see.check("within each partition the offsets rise", rising)


@SCENARIO.step(
    "More partitions move keys",
    narration="The number of partitions is in the formula. Adding partitions changes where keys go from now"
    " on; what is stored stays where it is.",
    action="grow the topic from 4 to 7 partitions and send one more position of every taxi",
    prediction="some taxi's newest record is in another partition than its history, so its order is lost",
)
def more_partitions(lab: Lab, see: Observation) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    lab.admin().create_partitions([NewPartitions("rides", 7)])["rides"].result(20)
    lab.cluster.wait_in_sync(["rides"])
    sent = lab.produce("rides", [(taxi, f"{taxi} after growing") for taxi in TAXIS[1:]])
    before = lab.notes["partition_of"]
    rows = [(found.key, before[str(found.key)], found.partition) for found in sent]
    see.table(("key", "before", "now"), sorted(rows))
    moved = [row for row in rows if row[1] != row[2]]
    see.figure("keys_moved", len(moved))
    see.check("at least one key went to another partition", bool(moved), rows)

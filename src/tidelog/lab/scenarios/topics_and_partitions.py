"""Topics and partitions: named logs in parts, spread over brokers, read as often as anyone likes."""

from confluent_kafka import KafkaException

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario

PARTITIONS = 6

SCENARIO = Scenario(
    name="topics-and-partitions",
    title="Topics and partitions",
    minutes=4,
    learn=(
        "a topic is a named log, cut into partitions that live on different brokers",
        "a record gets an offset, its number in its partition, and keeps it for ever",
        "reading takes nothing away: any number of readers, as often as they like",
        "a partition is a folder of files on the broker that leads it",
    ),
    brokers=3,
    summary="a topic is a set of logs; a record's address is topic, partition and offset",
)


@SCENARIO.step(
    "A topic over three brokers",
    narration="Nothing is stored in 'the cluster': every partition is stored by brokers. The controller"
    " places the partitions of a new topic so that every broker has its share. (One copy each for now;"
    " more copies come in 'replication-and-failover'.)",
    action=f"create the topic 'orders' with {PARTITIONS} partitions and one copy of each",
    prediction="each of the three brokers leads two partitions",
)
def create(lab: Lab, see: Observation) -> None:
    lab.create_topic("orders", partitions=PARTITIONS, replication_factor=1)
    found = [item for item in lab.cluster.view().partitions if item.topic == "orders"]
    see.table(("partition", "leader"), sorted((item.partition, item.leader) for item in found))
    shares = sorted(sum(item.leader == broker for item in found) for broker in lab.cluster.broker_ids)
    see.check("every broker leads two of the six", shares == [2, 2, 2], shares)


@SCENARIO.step(
    "Offsets count per partition",
    narration="The broker appends a record to the end of its partition and gives it the next offset. Each"
    " partition counts for itself, from 0.",
    action="send three records to every partition",
    prediction="every partition has the offsets 0, 1, 2",
)
def offsets(lab: Lab, see: Observation) -> None:
    sender = lab.sender()
    for turn in range(3):
        for partition in range(PARTITIONS):
            sender.send("orders", f"order {turn} of {partition}", partition=partition)
    sent = sender.flush()
    by_partition = {
        number: sorted(found.offset for found in sent if found.partition == number)
        for number in range(PARTITIONS)
    }
    see.table(("partition", "offsets"), by_partition.items())
    see.figure("records", len(sent))
    see.check("each partition counts 0, 1, 2", set(map(tuple, by_partition.values())) == {(0, 1, 2)}, sent)


@SCENARIO.step(
    "Reading takes nothing away",
    narration="In a queue a message is gone when somebody took it. Here a reader only remembers how far"
    " it is.",
    action="read the whole topic twice, with two consumers",
    prediction="both get all 18 records, and the log is as long as before",
)
def read_twice(lab: Lab, see: Observation) -> None:
    first = sorted((record.partition, record.offset, record.value) for record in lab.read("orders"))
    second = sorted((record.partition, record.offset, record.value) for record in lab.read("orders"))
    see.say(f"the first reader got {len(first)} records, the second {len(second)}")
    see.check("both got the same 18 records", len(first) == 18 and first == second, (len(first), len(second)))
    ends = [lab.positions("orders", number).high_watermark for number in range(PARTITIONS)]
    see.check("every partition still ends at 3", ends == [3] * PARTITIONS, ends)


@SCENARIO.step(
    "A partition is a folder",
    narration="Look into the data folder of each broker: what it leads is there under topic and number.",
    action="list the folders of 'orders' on the three brokers",
    prediction="each broker has exactly the folders of the two partitions that it leads",
)
def folders(lab: Lab, see: Observation) -> None:
    leaders = {
        item.partition: item.leader for item in lab.cluster.view().partitions if item.topic == "orders"
    }
    right = True
    rows = []
    for broker in lab.cluster.broker_ids:
        names = sorted(path.name for path in lab.broker_folder(broker).glob("orders-*"))
        rows.append((f"broker-{broker}", ", ".join(names)))
        right &= names == sorted(f"orders-{number}" for number, leader in leaders.items() if leader == broker)
    see.table(("folder", "partitions in it"), rows)
    see.check("every broker stores what it leads, and nothing else", right, rows)


@SCENARIO.step(
    "A topic that is not there, and one that goes",
    narration="The lab's brokers do not create topics by themselves (auto.create.topics.enable=false): a"
    " typing error in a name should not become a topic. Deleting a topic removes its records for good.",
    action="send to 'ordres', then delete 'orders'",
    prediction="the first is refused as an unknown topic; after the deletion no broker has a folder of it",
)
def unknown_and_deleted(lab: Lab, see: Observation) -> None:
    try:
        sent = lab.produce("ordres", ["a typing error"], topic_metadata_propagation_max_ms=500)
        refusal = sent[0].error if sent else "nothing was told"
    except KafkaException as refused:
        refusal = refused.args[0].name()
    see.say(f"sending to 'ordres': {refusal}")
    unknown = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
    see.check("a topic that is not there is refused", refusal in unknown, refusal)
    lab.admin().delete_topics(["orders"])["orders"].result(20)
    lab.topics.remove("orders")
    seconds = lab.wait("no broker has a folder of 'orders'", lambda: not _folders(lab))
    see.say(f"{seconds:.1f} s after the deletion the folders are gone")
    see.check("no broker has a folder of the deleted topic", not _folders(lab))


def _folders(lab: Lab) -> list[str]:
    """Folders of the topic that are not on their way out."""
    found = [
        path.name for broker in lab.cluster.broker_ids for path in lab.broker_folder(broker).glob("orders-*")
    ]
    return [name for name in found if not name.endswith("-delete")]

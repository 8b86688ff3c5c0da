"""The anatomy of a producer: serialise, partition, batch, send, try again."""

import json
import time

from tidelog.client.key_hash import murmur2
from tidelog.lab import log_files
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 3

SCENARIO = Scenario(
    name="producer-anatomy",
    title="The anatomy of a producer",
    minutes=5,
    learn=(
        "a broker stores bytes; what they mean is between producer and consumer",
        "the producer computes the partition, so you can too",
        "records wait for each other (linger.ms) and travel as one batch",
        "a producer tries again by itself until delivery.timeout.ms is over, and only then tells you",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=PARTITIONS), Topic("slips", partitions=1)),
    summary="serialise, partition, batch, send, retry; always look at the delivery report",
)


@SCENARIO.step(
    "Serialise",
    narration="Keys and values are bytes. Your application turns its objects into bytes (JSON, Avro, …), and"
    " nobody on the way looks into them.",
    action="turn an order into JSON, send it, and compare the bytes that a consumer gets",
    prediction="the consumer gets exactly the bytes that were sent",
)
def serialise(lab: Lab, see: Observation) -> None:
    order = {"id": 7, "city": "Zürich", "items": ["tea", "☕"]}
    text = json.dumps(order, ensure_ascii=False)
    [delivery] = lab.produce("orders", [("customer-7", text)])
    [record] = lab.read("orders", partitions=[delivery.partition], start_offset=delivery.offset)
    see.lines(f"object  {order}\nbytes   {text.encode()!r}")
    see.figure("value_bytes", len(text.encode()))
    see.check("what was read is what was sent", record.value == text, record.value)
    see.check("and it means the same", json.loads(record.value or "null") == order)


@SCENARIO.step(
    "Partition",
    narration="With a key, Java producers take murmur2(key), drop the sign bit, and divide by the number of"
    " partitions; the remainder is the partition. The Python client does the same with"
    " partitioner=murmur2_random (its own default is CRC-32, so set it where both write to one topic).",
    action="compute the partition of ten keys here, then send them and look where they are",
    prediction="every record is where the formula says",
)
def partition(lab: Lab, see: Observation) -> None:
    keys = [f"customer-{number}" for number in range(10)]
    sent = lab.produce("orders", [(key, "an order") for key in keys], partitioner="murmur2_random")
    where = {found.key: found.partition for found in sent}
    rows = [(key, (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS, where.get(key)) for key in keys]
    see.table(("key", "computed", "found in"), rows)
    see.check("all ten are where the formula says", all(row[1] == row[2] for row in rows), rows)


@SCENARIO.step(
    "Batch",
    narration="A record is not sent at once: the producer waits linger.ms for more of the same partition, and"
    " sends them together. A batch is also what is stored, compressed and replicated as one piece.",
    action="send 100 records with linger.ms=200, then 5 with a flush after each; read the batches in the"
    " file",
    prediction="the 100 are one batch; the 5 are five batches",
)
def batch(lab: Lab, see: Observation) -> None:
    sent = lab.produce("slips", [f"slip {number}" for number in range(100)], linger_ms=200)
    sender = lab.sender(linger_ms=0)
    for number in range(5):
        sender.send("slips", f"single {number}")
        sender.flush()
    stored = list(log_files.batches(lab.partition_folder(1, "slips")))
    rows = [
        (item.position, item.header.base_offset, item.header.records_count, item.header.size_bytes)
        for item in stored
    ]
    see.table(("position", "first offset", "records", "bytes"), rows)
    counts = [row[2] for row in rows]
    see.figure("records_per_batch", counts)
    see.figure("bytes_of_a_batch_of_100", rows[0][3])
    see.figure("bytes_of_a_batch_of_1", rows[-1][3])
    see.check("100 records travelled as one batch", counts[0] == len(sent) == 100, counts)
    see.check("five flushes made five batches", counts[1:] == [1] * 5, counts)


@SCENARIO.step(
    "Send, and try again",
    narration="The broker may be away for a moment. The producer keeps the records and tries again; your code"
    " sees nothing of it but a late delivery report.",
    action="kill the broker, send a record, start the broker again a second later",
    prediction="the record is delivered, later than usual, and without a line of code for it",
)
def retry(lab: Lab, see: Observation) -> None:
    sender = lab.sender()
    sender.send("slips", "before")
    sender.flush()
    lab.faults.kill(1)
    began = time.monotonic()
    sender.send("slips", "while the broker was away")
    sender.flush(1)
    waiting = len(sender.client)
    see.say(
        f"after {time.monotonic() - began:.1f} s without a broker, {waiting} record waits in the producer"
    )
    lab.faults.start(1)
    late = sender.fates()[-1]
    see.figure("delivered_after_ms", round(late.latency_ms))
    see.say(f"delivered at offset {late.offset} after {late.latency_ms / 1000:.1f} s")
    see.check("it waited while the broker was away", waiting == 1, waiting)
    see.check("it was delivered when the broker was back", late.acknowledged, late.error)
    values = [record.value for record in lab.read("slips")]
    see.check("the log has it once", values.count("while the broker was away") == 1, values[-3:])


@SCENARIO.step(
    "When the time is over",
    narration="It does not try for ever: delivery.timeout.ms (message.timeout.ms in librdkafka; two"
    " minutes in Java, five in librdkafka) after you handed the record over, the delivery report says"
    " that it failed. Who does not look at delivery reports loses records without knowing.",
    action="kill the broker and send a record that has 1.5 seconds",
    prediction="the delivery report says _MSG_TIMED_OUT, and the record is not in the log",
)
def give_up(lab: Lab, see: Observation) -> None:
    lab.faults.kill(1)
    sent = lab.produce("slips", ["given up"], message_timeout_ms=1500, timeout_seconds=10)
    told = sent[0].error if sent else None
    lab.faults.start(1)
    see.say(f"delivery report: {told}")
    see.check("the delivery report says that the time is over", told == "_MSG_TIMED_OUT", told)
    values = [record.value for record in lab.read("slips")]
    see.check("the log does not have it", "given up" not in values, values[-3:])

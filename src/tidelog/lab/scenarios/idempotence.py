"""Idempotence: a lost answer makes a duplicate, unless the broker knows producers and their sequences."""

import time

from tidelog.lab import log_files, wire_requests
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.model.errors import ErrorCode

SCENARIO = Scenario(
    name="idempotence",
    title="Idempotence: retries without duplicates",
    minutes=5,
    learn=(
        "an answer can get lost after the record was stored; the producer cannot know",
        "without idempotence the retry stores it a second time",
        "with it, producer id and sequence number show the broker that it has the batch already",
        "a gap in the sequence numbers is refused, so nothing overtakes",
    ),
    brokers=1,
    topics=(Topic("plain"), Topic("idempotent"), Topic("by-hand")),
    summary="leave enable.idempotence=true (the default of Java since 3.0; set it in librdkafka)",
)


def _send_with_lost_answer(lab: Lab, topic: str, **options: object) -> tuple[bool, int, list[str | None]]:
    """Lose the answer to one record; whether it was lost, the offset reported in the end, and the log."""
    sender = lab.sender(acks="all", **options)
    sender.send(topic, "a first record opens the connection")
    sender.flush()
    lost = lab.network.lose_answers(1)
    sender.send(topic, "pay 100 euros")
    delivery = sender.fates()[-1]
    return lost.is_set(), delivery.offset, [record.value for record in lab.read(topic)]


@SCENARIO.step(
    "A lost answer, and a duplicate",
    narration="The broker stores the record and answers; the connection breaks before the answer arrives. The"
    " producer sees only the broken connection, and sends again.",
    action="send 'pay 100 euros' with enable.idempotence=false, and lose the answer",
    prediction="the log has the payment twice",
)
def duplicate(lab: Lab, see: Observation) -> None:
    lost, offset, log = _send_with_lost_answer(lab, "plain", enable_idempotence=False)
    see.lines("\n".join(f"offset {number}  {value}" for number, value in enumerate(log)))
    see.say(f"the producer was told of one delivery, at offset {offset}")
    see.figure("copies", log.count("pay 100 euros"))
    see.check("an answer was lost", lost)
    see.check("the log has the payment twice", log.count("pay 100 euros") == 2, log)


@SCENARIO.step(
    "The same with idempotence",
    narration="An idempotent producer gets a producer id at its start and numbers its records. The broker"
    " remembers the last numbers of every producer in every partition.",
    action="the same with enable.idempotence=true",
    prediction="the log has the payment once, and the producer is told the offset of the first try",
)
def no_duplicate(lab: Lab, see: Observation) -> None:
    lost, offset, log = _send_with_lost_answer(lab, "idempotent", enable_idempotence=True)
    see.lines("\n".join(f"offset {number}  {value}" for number, value in enumerate(log)))
    see.figure("copies", log.count("pay 100 euros"))
    see.check("an answer was lost", lost)
    see.check("the log has the payment once", log.count("pay 100 euros") == 1, log)
    see.check("the producer knows where it is", offset == 1, offset)


@SCENARIO.step(
    "Where the numbers are",
    narration="Producer id, epoch and first sequence number are in the header of every batch, so"
    " followers and a restarted broker know them too.",
    action="read the batch headers of both topics from disk",
    prediction="the idempotent batches have an id and the sequences 0, 1; the plain ones have -1",
)
def on_disk(lab: Lab, see: Observation) -> None:
    headers = {
        topic: [item.header for item in log_files.batches(lab.partition_folder(1, topic))]
        for topic in ("plain", "idempotent")
    }
    rows = [
        (topic, header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence)
        for topic, found in headers.items()
        for header in found
    ]
    see.table(("topic", "offset", "producer id", "epoch", "sequence"), rows)
    see.check("plain batches name no producer", {h.producer_id for h in headers["plain"]} == {-1}, rows)
    ids = {header.producer_id for header in headers["idempotent"]}
    see.check("the idempotent ones name one", len(ids) == 1 and min(ids) >= 0, rows)
    sequences = [header.base_sequence for header in headers["idempotent"]]
    see.check("their sequence numbers are 0 and 1", sequences == [0, 1], sequences)


@SCENARIO.step(
    "By hand on the wire",
    narration="Without a client library: ask for a producer id, send a batch with sequence 0, send the"
    " very same bytes again, then a batch that skips a number.",
    action="send sequence 0, sequence 0 again, then sequence 5",
    prediction="the repeat is answered with the first offset and not stored; the gap is refused",
)
def by_hand(lab: Lab, see: Observation) -> None:
    link = lab.wire(1)
    identity = wire_requests.init_producer_id(link)
    now_ms = int(time.time() * 1000)
    first = wire_requests.sequenced_batch(["pay 100 euros"], identity, 0, now_ms)
    gap = wire_requests.sequenced_batch(["pay 200 euros"], identity, 5, now_ms)
    answers = [wire_requests.produce(link, "by-hand", 0, batch) for batch in (first, first, gap)]
    see.say(f"producer id {identity.producer_id}, epoch {identity.epoch}")
    see.table(
        ("sent", "answer", "offset"),
        [
            (sent, wire_requests.error_name(answer.error), answer.base_offset)
            for sent, answer in zip(("sequence 0", "sequence 0 again", "sequence 5"), answers, strict=True)
        ],
    )
    same = answers[0].error == answers[1].error == 0 and answers[0].base_offset == answers[1].base_offset == 0
    see.check("the repeat is answered with the first offset", same, answers)
    end = lab.positions("by-hand").high_watermark
    see.check("it is stored once", end == 1, f"the log ends at {end}")
    refused = answers[2].error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    see.check("the gap is refused", refused, wire_requests.error_name(answers[2].error))


@SCENARIO.step(
    "The memory survives a crash",
    narration="What the broker remembers of producers is in the log, with snapshots beside it. A"
    " restarted broker reads it back.",
    action="kill the broker, start it, and send the bytes with sequence 0 for the third time",
    prediction="it is still known, and not stored again",
)
def after_crash(lab: Lab, see: Observation) -> None:
    stored = next(iter(log_files.batches(lab.partition_folder(1, "by-hand"))))
    header = stored.header
    identity = wire_requests.ProducerIdentity(header.producer_id, header.producer_epoch)
    again = wire_requests.sequenced_batch(["pay 100 euros"], identity, 0, header.base_timestamp_ms)
    lab.faults.kill(1)
    lab.faults.start(1)
    answer = wire_requests.produce(lab.wire(1), "by-hand", 0, again)
    end = lab.positions("by-hand").high_watermark
    told = wire_requests.error_name(answer.error)
    see.say(f"answer: {told}, offset {answer.base_offset}; the log ends at {end}")
    see.check("the third copy is taken for what it is", answer.error == 0 and answer.base_offset == 0, answer)
    see.check("the log still has one record", end == 1, end)

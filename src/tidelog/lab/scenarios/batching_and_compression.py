"""Batching and compression, measured: what waiting a little buys, and what each codec saves."""

import json
import random
import statistics
import time

from tidelog.lab import log_files
from tidelog.lab.clients import FLUSH_SECONDS
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SEED = 20
SINGLES = 1_000
RECORDS = 20_000
LINGERS_MS = (0, 5, 50)
CODECS = ("none", "snappy", "lz4", "gzip", "zstd")
PACED_RECORDS = 60
PACE_SECONDS = 0.005

SCENARIO = Scenario(
    name="batching-and-compression",
    title="Batching and compression",
    minutes=5,
    learn=(
        "one request per record is slow: the cost is in the request, not in the bytes",
        "linger.ms buys larger batches, and costs latency when there is little to send",
        "a batch is compressed as a whole, so larger batches compress better",
        "the broker stores what it gets: compression saves network and disk at once",
    ),
    brokers=1,
    topics=(
        Topic("singles"),
        *(Topic(f"linger-{ms}") for ms in LINGERS_MS),
        *(Topic(f"codec-{c}") for c in CODECS),
    ),
    gates=False,
    summary="let records wait a few milliseconds for each other, and compress: lz4 or zstd",
)


def clicks(count: int) -> list[str]:
    """Web clicks as JSON, the same on every run."""
    source = random.Random(SEED)
    pages = ("home", "search", "product", "basket", "checkout")
    return [
        json.dumps(
            {
                "visitor": source.randrange(10_000),
                "page": source.choice(pages),
                "referrer": f"https://shop.example/{source.choice(pages)}",
                "milliseconds": source.randrange(5_000),
                "number": number,
            }
        )
        for number in range(count)
    ]


@SCENARIO.step(
    "One request per record",
    narration="What does a record cost when each one is a request of its own? The next one is sent only"
    " when the broker has answered, as code does that waits for every send.",
    action=f"send {SINGLES} clicks one by one, then {RECORDS} with the producer's default of 5 ms linger",
    prediction="together they are at least three times as many per second",
)
def singles(lab: Lab, see: Observation) -> None:
    sender = lab.sender(linger_ms=0)
    began = time.perf_counter()
    for click in clicks(SINGLES):
        sender.send("singles", click)
        sender.client.flush()
    alone_rate = SINGLES / (time.perf_counter() - began)
    together_rate = _send(lab, "linger-5", linger_ms=5)
    see.table(
        ("how", "records per second"),
        [("one by one, waiting for each", round(alone_rate)), ("linger.ms=5", round(together_rate))],
    )
    see.figure("records_per_second_alone", round(alone_rate))
    see.figure("records_per_second_together", round(together_rate))
    see.figure("times_faster", round(together_rate / alone_rate, 1))
    rates = (round(alone_rate), round(together_rate))
    see.check("together is at least three times as fast", together_rate > 3 * alone_rate, rates)


def _send(lab: Lab, topic: str, **options: object) -> float:
    """Send all clicks, without a callback for each, which would be what is measured; records per second."""
    values = clicks(RECORDS)
    producer = lab.sender(queue_buffering_max_messages=2 * RECORDS, **options).client
    began = time.perf_counter()
    for value in values:
        producer.produce(topic, value)
    left = producer.flush(FLUSH_SECONDS)
    seconds = time.perf_counter() - began
    if left:
        raise TimeoutError(f"{left} of {RECORDS} records were not delivered in time")
    return RECORDS / seconds


@SCENARIO.step(
    "Linger: latency against batches",
    narration="When records come slowly, a batch fills only if somebody waits. linger.ms is how long the"
    " first record waits for others.",
    action=f"send {PACED_RECORDS} clicks, one every {PACE_SECONDS * 1000:.0f} ms, with linger.ms 0, 5 and 50",
    prediction="a longer linger makes fewer, larger batches, and later deliveries",
)
def linger(lab: Lab, see: Observation) -> None:
    rows = []
    for linger_ms in LINGERS_MS:
        topic = f"linger-{linger_ms}"
        before = sum(1 for _ in log_files.batches(lab.partition_folder(1, topic)))
        sender = lab.sender(linger_ms=linger_ms)
        sender.send(topic, "the first one opens the connection")
        sender.flush()
        for value in clicks(PACED_RECORDS):
            sender.send(topic, value)
            sender.client.poll(PACE_SECONDS)
        latencies = [delivery.latency_ms for delivery in sender.flush()[1:]]
        count = sum(1 for _ in log_files.batches(lab.partition_folder(1, topic))) - before - 1
        rows.append(
            (linger_ms, count, round(PACED_RECORDS / count, 1), round(statistics.median(latencies), 1))
        )
    see.table(("linger.ms", "batches", "records per batch", "median latency ms"), rows)
    see.figure(
        "linger",
        [dict(zip(("linger_ms", "batches", "per_batch", "median_ms"), row, strict=True)) for row in rows],
    )
    shortest, _, longest = rows
    see.check("50 ms makes fewer batches than 0 ms", longest[1] * 2 < shortest[1], rows)
    see.check("and its records arrive later", longest[3] > shortest[3], rows)


@SCENARIO.step(
    "Five codecs",
    narration="The producer compresses each batch; the broker stores and hands on the same bytes; the"
    " consumer unpacks. JSON repeats its field names in every record, which is what codecs like.",
    action=f"send the same {RECORDS} clicks with each codec and measure the files",
    prediction="every codec stores less than half of 'none'; zstd or gzip the least",
)
def codecs(lab: Lab, see: Observation) -> None:
    sizes: dict[str, int] = {}
    rows = []
    for codec in CODECS:
        rate = _send(lab, f"codec-{codec}", linger_ms=20, compression_type=codec)
        stored = log_files.batches(lab.partition_folder(1, f"codec-{codec}"))
        sizes[codec] = sum(item.header.size_bytes for item in stored)
        rows.append((codec, sizes[codec], f"{sizes[codec] / sizes['none']:.0%}", round(rate)))
    see.table(("codec", "bytes on disk", "of 'none'", "records per second"), rows)
    see.figure("bytes", sizes)
    packed = {codec: size for codec, size in sizes.items() if codec != "none"}
    halves = all(size * 2 < sizes["none"] for size in packed.values())
    see.check("every codec needs less than half of the bytes", halves, sizes)
    smallest = min(packed, key=lambda codec: packed[codec])
    see.check("zstd or gzip is the smallest", smallest in ("zstd", "gzip"), smallest)
    values = [record.value for record in lab.read("codec-zstd")]
    see.check("a consumer gets the same records back", values == clicks(RECORDS))


@SCENARIO.step(
    "Compression needs batches",
    narration="A codec finds repetition within a batch. A batch of one click has little.",
    action="send 200 clicks with zstd, each in a batch of its own, and compare the bytes per record",
    prediction="alone, a record needs several times the bytes",
)
def alone(lab: Lab, see: Observation) -> None:
    together = log_files.batches(lab.partition_folder(1, "codec-zstd"))
    packed_bytes = sum(item.header.size_bytes for item in together) / RECORDS
    before = sum(item.header.size_bytes for item in log_files.batches(lab.partition_folder(1, "singles")))
    lab.produce("singles", clicks(200), batch_num_messages=1, compression_type="zstd")
    after = sum(item.header.size_bytes for item in log_files.batches(lab.partition_folder(1, "singles")))
    alone_bytes = (after - before) / 200
    see.table(
        ("zstd", "bytes per record"),
        [("in large batches", round(packed_bytes, 1)), ("one record per batch", round(alone_bytes, 1))],
    )
    see.figure("bytes_per_record_batched", round(packed_bytes, 1))
    see.figure("bytes_per_record_alone", round(alone_bytes, 1))
    see.check(
        "alone it needs at least three times as much",
        alone_bytes > 3 * packed_bytes,
        (alone_bytes, packed_bytes),
    )

"""Loads of the Python clients with their default settings, for bench/beside_kafka. Prints name=value lines.

    python -m bench.beside_kafka.python_load BOOTSTRAP librdkafka TOPIC SIZE WARM_UP_SECONDS SECONDS
    python -m bench.beside_kafka.python_load BOOTSTRAP aiokafka TOPIC SIZE WARM_UP_SECONDS SECONDS

Both produce as fast as the client goes, without keys.
"""

import asyncio
import random
import string
import sys
import time
from typing import Any

PAYLOADS = 512
#: what aiokafka is given to work on at a time
AIOKAFKA_IN_FLIGHT = 5_000


def payloads(size: int) -> list[bytes]:
    letters = string.ascii_uppercase.encode()
    source = random.Random(7)
    return [bytes(source.choices(letters, k=size)) for _ in range(PAYLOADS)]


def tell(began: float, records: int, size: int, failed: int) -> None:
    took = time.monotonic() - began
    print(f"ended=1\nper_second={records / took:.1f}\nrecords={records}\nbytes={records * size}", flush=True)
    print(f"requests=0\nfailed={failed}", flush=True)


def produce_with_librdkafka(bootstrap: str, topic: str, size: int, warm_up: int, seconds: int) -> None:
    from confluent_kafka import Producer

    acknowledged = failed = 0

    def delivered(fault: Any, message: Any) -> None:
        nonlocal acknowledged, failed
        if fault is None:
            acknowledged += 1
        else:
            failed += 1

    client = Producer({"bootstrap.servers": bootstrap})
    values = payloads(size)
    begin = time.monotonic() + warm_up
    end = begin + seconds
    began, at_begin, sent = 0.0, 0, 0
    while True:
        if not sent & 255:
            now = time.monotonic()
            if not began and now >= begin:
                began, at_begin = now, acknowledged
                print("began=1", flush=True)
            if now >= end:
                break
        try:
            client.produce(topic, values[sent % PAYLOADS], on_delivery=delivered)
            sent += 1
            if not sent & 63:
                client.poll(0)
        except BufferError:
            client.poll(0.01)
    tell(began, acknowledged - at_begin, size, failed)
    client.flush(30)


async def produce_with_aiokafka(bootstrap: str, topic: str, size: int, warm_up: int, seconds: int) -> None:
    from aiokafka import AIOKafkaProducer

    client = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await client.start()
    values = payloads(size)
    begin = time.monotonic() + warm_up
    end = begin + seconds
    began, records, failed = 0.0, 0, 0
    try:
        while (now := time.monotonic()) < end:
            if not began and now >= begin:
                began, records = now, 0
                print("began=1", flush=True)
            sent = [await client.send(topic, values[i % PAYLOADS]) for i in range(AIOKAFKA_IN_FLIGHT)]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            failed += sum(isinstance(each, BaseException) for each in outcomes)
            records += len(outcomes)
        tell(began, records, size, failed)
    finally:
        await client.stop()


def main() -> None:
    bootstrap, client, topic, *numbers = sys.argv[1:]
    size, warm_up, seconds = map(int, numbers)
    if client == "librdkafka":
        produce_with_librdkafka(bootstrap, topic, size, warm_up, seconds)
    else:
        asyncio.run(produce_with_aiokafka(bootstrap, topic, size, warm_up, seconds))


if __name__ == "__main__":
    main()

"""At least once: work first, then commit the offset.

A crash between the two repeats what was done and not committed: the next life starts before it.

    python at_least_once.py --bootstrap localhost:9092
"""

import os

from confluent_kafka import Producer
from shop import CRASHED, Job, batches, receipt, run_worker


def work(job: Job) -> None:
    consumer = job.consumer()
    producer = Producer({"bootstrap.servers": job.bootstrap})
    for number, orders in enumerate(batches(consumer)):
        for order in orders:
            producer.produce(job.receipts, receipt(order))
        producer.flush()
        if job.crash and number == 1:
            os._exit(CRASHED)  # the worst moment: the receipts are written and nobody remembers it
        consumer.commit(orders[-1], asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    run_worker(__file__, work)

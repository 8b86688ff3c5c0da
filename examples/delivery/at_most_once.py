"""At most once: commit the offset first, then work.

A crash between the two loses what was committed and not done: the next life starts behind it.

    python at_most_once.py --bootstrap localhost:9092
"""

import os

from confluent_kafka import Producer
from shop import CRASHED, Job, batches, receipt, run_worker


def work(job: Job) -> None:
    consumer = job.consumer()
    producer = Producer({"bootstrap.servers": job.bootstrap})
    for number, orders in enumerate(batches(consumer)):
        consumer.commit(orders[-1], asynchronous=False)
        if job.crash and number == 1:
            os._exit(CRASHED)  # the worst moment: nobody will look at these orders again
        for order in orders:
            producer.produce(job.receipts, receipt(order))
        producer.flush()
    consumer.close()


if __name__ == "__main__":
    run_worker(__file__, work)

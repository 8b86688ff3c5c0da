"""Exactly once: receipts and offsets in one transaction, which counts as a whole or not at all.

A crash inside leaves receipts in the log that no reader of committed data ever sees. The next life takes the
transactional id over, which aborts what was left open, and starts again before it.

    python exactly_once.py --bootstrap localhost:9092
"""

import os

from confluent_kafka import Producer, TopicPartition
from shop import CRASHED, Job, batches, receipt, run_worker


def work(job: Job) -> None:
    settings = {"bootstrap.servers": job.bootstrap, "transactional.id": job.name, "log_level": 3}
    producer = Producer(settings)
    producer.init_transactions()  # ends whatever a former life left open
    consumer = job.consumer()
    for number, orders in enumerate(batches(consumer)):
        producer.begin_transaction()
        for order in orders:
            producer.produce(job.receipts, receipt(order))
        behind = TopicPartition(job.orders, orders[-1].partition(), orders[-1].offset() + 1)
        producer.send_offsets_to_transaction([behind], consumer.consumer_group_metadata())
        if job.crash and number == 1:
            producer.flush()
            os._exit(CRASHED)  # the worst moment: everything is sent, and nothing is committed
        producer.commit_transaction()
    consumer.close()


if __name__ == "__main__":
    run_worker(__file__, work)

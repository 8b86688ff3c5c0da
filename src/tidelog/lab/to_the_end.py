"""Reading as programs of a lesson do: record by record until there is nothing left."""

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

WAIT_SECONDS = 20.0


def to_the_end(
    consumer: Consumer, partitions: int = 1, timeout_seconds: float = WAIT_SECONDS
) -> Iterator[Message]:
    """Messages as they come, until the ends of so many partitions were seen.

    The consumer must have `enable.partition.eof`. Raises KafkaException for what brokers refuse, and
    TimeoutError when nothing comes.
    """
    ends: set[tuple[str | None, int | None]] = set()
    while len(ends) < partitions:
        message = consumer.poll(timeout_seconds)
        if message is None:
            raise TimeoutError(f"no record came within {timeout_seconds:g} s")
        fault = message.error()
        if fault is None:
            yield message
        elif fault.code() == KafkaError._PARTITION_EOF:
            ends.add((message.topic(), message.partition()))
        else:
            raise KafkaException(fault)

"""Requests that a step writes by hand on a raw connection, to show what a client library hides."""

from typing import NamedTuple

from tidelog.client import produce_requests
from tidelog.client.api_keys import INIT_PRODUCER_ID
from tidelog.client.faults import Refusal
from tidelog.client.link import Link
from tidelog.client.produce_requests import ALL_REPLICAS, BatchAnswer, BatchToSend
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import PRODUCE
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TIMEOUT_MS = 5_000


class ProducerIdentity(NamedTuple):
    """What an idempotent producer is known by."""

    producer_id: int
    epoch: int


def init_producer_id(link: Link) -> ProducerIdentity:
    """Ask a broker for a producer id, as an idempotent producer does at its start."""
    fields = {"transactional_id": None, "transaction_timeout_ms": TIMEOUT_MS}
    answer = link.request(INIT_PRODUCER_ID, fields, highest=1)
    if answer.error_code:
        raise Refusal(answer.error_code, "asking for a producer id")
    return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))


def sequenced_batch(values: list[str], identity: ProducerIdentity, sequence: int, timestamp_ms: int) -> bytes:
    """A batch as an idempotent producer sends it."""
    records = [Record(0, timestamp_ms, None, value.encode(), ()) for value in values]
    return build_batch(
        records,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
    )


def produce(link: Link, topic: str, partition: int, data: bytes, acks: int = ALL_REPLICAS) -> BatchAnswer:
    """Send one batch and return the broker's answer, whatever it is."""
    version = link.version_of(PRODUCE, produce_requests.VERSION_MIN, produce_requests.VERSION_MAX)
    batch = BatchToSend(topic, partition, data)
    body = produce_requests.encode_request([batch], None, TIMEOUT_MS, acks)
    [answer] = produce_requests.decode_response(version, link.receive(link.send(PRODUCE, version, body)))
    return answer


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    return ErrorCode(code).name

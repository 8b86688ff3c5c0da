"""Writes to the topic behind a fence: one transactional id for all instances of a registry.

Whoever may write begins with `claim`: the cluster gives the transactional id a new epoch, aborts what a
predecessor has open, and refuses everything that the predecessor sends from then on, however long it was
paused. So two writers never both append, whatever they believe. Each change is one transaction: all its
records, or none.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidelog.registry.records import StoredRecord

_log = logging.getLogger("tidelog.registry")

CLAIM_SECONDS_MAX = 30.0
COMMIT_SECONDS_MAX = 15.0
TRANSACTION_TIMEOUT_MS = 20_000
_FENCED = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}


class Fenced(Exception):
    """Somebody else writes now; nothing of ours was written."""


class OutcomeUnknown(Exception):
    """Nobody can say whether the records were written: claim again, catch up, and decide anew."""


class RecordTooLarge(Exception):
    """The cluster takes no record of this size; nothing was written."""


class FencedWriter:
    """One claim; made by `claim`."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    def __repr__(self) -> str:
        return f"<FencedWriter {self._topic}>"

    @classmethod
    def claim(cls, properties: Mapping[str, Any], topic: str, transactional_id: str) -> "FencedWriter":
        """Become the one who writes; raises KafkaException."""
        producer = Producer(
            {
                **properties,
                "client.id": "tidelog-registry-writer",
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
                "acks": "all",
                "message.max.bytes": 16 << 20,
                "error_cb": lambda error: None,
            }
        )
        producer.init_transactions(CLAIM_SECONDS_MAX)
        return cls(producer, topic)

    def write(self, records: Sequence[StoredRecord]) -> int:
        """Append records in a transaction and return the offset of the last one."""
        delivered: list[int] = []
        faults: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                faults.append(error)
            else:
                delivered.append(message.offset() or 0)

        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(
                    self._topic, record.value, record.key, partition=0, on_delivery=on_delivery
                )
            self._producer.flush(COMMIT_SECONDS_MAX)
            if faults or len(delivered) != len(records):
                raise KafkaException(faults[0] if faults else KafkaError(KafkaError._TIMED_OUT))
        except (KafkaException, BufferError, SystemError) as fault:
            # confluent-kafka raises SystemError where a fatal error comes together with a delivery report.
            self._give_up(fault)
        try:
            self._producer.commit_transaction(COMMIT_SECONDS_MAX)
        except SystemError as fault:
            raise OutcomeUnknown(str(fault)) from fault
        except KafkaException as fault:
            if fault.args[0].code() in _FENCED or fault.args[0].fatal():
                raise Fenced(fault.args[0].str()) from fault
            raise OutcomeUnknown(fault.args[0].str()) from fault
        return max(delivered)

    def _give_up(self, fault: KafkaException | BufferError | SystemError) -> NoReturn:
        """Nothing is committed: take it back if that is possible, and say what it means."""
        error = fault.args[0] if isinstance(fault, KafkaException) else None
        code = error.code() if error is not None else None
        if code in _FENCED:
            raise Fenced(str(fault)) from fault
        try:
            self._producer.abort_transaction(COMMIT_SECONDS_MAX)
        except KafkaException as second:
            if second.args[0].code() in _FENCED or second.args[0].fatal():
                raise Fenced(second.args[0].str()) from fault
            raise OutcomeUnknown(second.args[0].str()) from fault
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            raise RecordTooLarge(str(fault)) from fault
        raise OutcomeUnknown(str(fault)) from fault

    def close(self) -> None:
        """Forget it; what is under way is left to the next claim."""
        self._producer.purge()
        self._producer.flush(0)

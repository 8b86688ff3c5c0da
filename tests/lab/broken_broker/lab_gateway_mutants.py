"""Wrong edits of a gateway, by name, that the scenario of gateways must notice."""

from collections.abc import Callable, Mapping
from typing import Any

from lab_edits import edit


def acknowledged_before_written() -> None:
    """PUBACK is sent for what was never written."""
    from tidelog.gateways.mqtt.publisher import Publisher

    def publish(self: Publisher, record: Any, done: Any = None) -> None:
        if done is not None:
            self._loop.call_soon(done, 0, None)

    edit(Publisher, "publish", publish)


def given_back_is_done() -> None:
    """What a worker gives back, or holds when it goes, nobody gets again."""
    from tidelog.gateways.amqp.queue_reader import QueueReader
    from tidelog.gateways.amqp.share_member import ACCEPT, RELEASE

    original = QueueReader.settle

    def settle(self: QueueReader, delivery: Any, kind: int) -> None:
        original(self, delivery, ACCEPT if kind == RELEASE else kind)

    edit(QueueReader, "settle", settle)


def redelivered_is_not_said() -> None:
    from tidelog.gateways.amqp.queue_reader import QueueReader

    original = QueueReader.acquired

    def acquired(self: QueueReader, records: Any) -> None:
        original(self, [each._replace(delivery_count=1) for each in records])

    edit(QueueReader, "acquired", acquired)


def _sessions_lose(field: str, value: Callable[[], object]) -> None:
    """What a session was is forgotten when a gateway starts."""
    from tidelog.gateways.mqtt import session_record

    original = session_record.read

    def read(client_id: str, content: bytes) -> session_record.Stored:
        stored = original(client_id, content)
        setattr(stored.session, field, value())
        return stored

    edit(session_record, "read", read)


def packet_identifiers_are_forgotten() -> None:
    _sessions_lose("received", set)


def places_of_sessions_are_forgotten() -> None:
    _sessions_lose("next_offsets", dict)


GATEWAY_MUTANTS: Mapping[str, Callable[[], None]] = {
    "acknowledged before written": acknowledged_before_written,
    "given back is done": given_back_is_done,
    "redelivered is not said": redelivered_is_not_said,
    "packet identifiers are forgotten": packet_identifiers_are_forgotten,
    "places of sessions are forgotten": places_of_sessions_are_forgotten,
}

"""A member of a share group against a broker in this thread: joins, fetches, says what became of records."""

import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.unit.broker.node import NodeUnderTest, batch, joined, produce_frame
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import PendingAnswer
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.records.batch import iterate_headers
from tidelog.records.record import iterate_records

ROWS = {row.name: row for row in APIS.values()}
GROUP = "g"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": "2",
    "share_coordinator_state_topic_num_partitions": "2",
}


def decoded(name: str, version: int, answer: Any) -> Any:
    """An answer that is there, as kio's object."""
    start = 9 if ROWS[name].flexible(version) else 8
    return messages.decode_response(ROWS[name], version, memoryview(joined(answer))[start:])


def send(node: NodeUnderTest, name: str, version: int, **fields: Any) -> Any:
    """The answer to a request, perhaps one that is still to come."""
    row = ROWS[name]
    header = struct.pack(">hhih", row.key, version, 5, 4) + b"test"
    tags = b"\x00" if row.flexible(version) else b""
    return node.handle(header + tags + messages.encode_request(row, version, fields))


def ask(node: NodeUnderTest, name: str, version: int, **fields: Any) -> Any:
    """The decoded answer; what it waits for may take a moment, and no time passes."""
    answer = send(node, name, version, **fields)
    for _ in range(20):
        if not isinstance(answer, PendingAnswer) or answer.chunks is not None:
            break
        node.advance(0)
    return decoded(name, version, answer)


def sharing_node(**settings: Any) -> NodeUnderTest:
    """A broker with the topic `t` of two partitions, whose groups begin at the start."""
    node = NodeUnderTest(**SETTINGS, **settings)
    node.create_topic("t", 2)
    assert not int(ask(node, "FindCoordinator", 3, key=GROUP, key_type=0).error_code)
    configure(node, "share.auto.offset.reset", "earliest")
    return node


def configure(node: NodeUnderTest, name: str, value: str, group: str = GROUP) -> None:
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 32, "resource_name": group, "configs": [change]}
    [row] = ask(node, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False).responses
    assert not int(row.error_code), row


def produce(node: NodeUnderTest, *values: bytes, partition: int = 0, topic: str = "t", **fields: Any) -> None:
    """One batch."""
    node.handle(produce_frame(7, batch(*values, **fields), topic, partition))


def values_of(records: bytes, acquired: Any) -> list[bytes]:
    """The values of the records that were acquired."""
    offsets = {offset for each in acquired for offset in range(each.first_offset, each.last_offset + 1)}
    return [
        record.value
        for position, header in iterate_headers(records)
        for record in iterate_records(memoryview(records)[position : position + header.size_bytes], header)
        if record.offset in offsets and record.value is not None
    ]


class ShareMember:
    """One member with a connection of its own; `partitions` are those of the topic `t` that it fetches."""

    def __init__(
        self,
        node: NodeUnderTest,
        member_id: str = "m",
        partitions: tuple[int, ...] = (0,),
        group: str = GROUP,
        topic: str = "t",
    ) -> None:
        self.node = node
        self.member_id = member_id
        self.partitions = partitions
        self.group = group
        self.topic = topic
        self.epoch = 0
        self.session_epoch = 0
        self.context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")

    @property
    def topic_id(self) -> UUID:
        return self.node.broker.image.topics[self.topic].topic_id

    def heartbeat(self, epoch: int | None = None) -> Any:
        answer = ask(
            self.node,
            "ShareGroupHeartbeat",
            1,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            subscribed_topic_names=[self.topic] if not self.epoch else None,
        )
        self.epoch = answer.member_epoch
        return answer

    def join(self) -> "ShareMember":
        """Until it has an assignment."""
        for _ in range(4):
            answer = self.heartbeat()
            assert not int(answer.error_code), answer
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return self
            self.node.advance(10)
        raise AssertionError("it was assigned nothing")

    def send_fetch(self, said: dict[int, Any] | None = None, **fields: Any) -> Any:
        """A ShareFetch; `said` is what is said of records, by partition."""
        node = self.node
        others, node.context = node.context, self.context
        said = said or {}
        places = self.partitions if self.session_epoch == 0 else tuple(said)
        topics = [
            {"partition_index": index, "acknowledgement_batches": batches(said.get(index, ()))}
            for index in places
        ]
        asked: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": [{"topic_id": self.topic_id, "partitions": topics}] if topics else [],
            "forgotten_topics_data": [],
        }
        answer = send(node, "ShareFetch", 2, **{**asked, **fields})
        node.context = others
        if fields.get("share_session_epoch", self.session_epoch) == self.session_epoch:
            self.session_epoch += 1
        return answer

    def fetch(self, said: dict[int, Any] | None = None, **fields: Any) -> Any:
        answer = self.send_fetch(said, **fields)
        for _ in range(20):
            if not isinstance(answer, PendingAnswer) or answer.chunks is not None:
                break
            self.node.advance(0)
        return decoded("ShareFetch", 2, answer)

    def take(self, said: dict[int, Any] | None = None, **fields: Any) -> list[bytes]:
        """The values that a fetch gets; the first one of a share partition only has its state read."""
        answer = self.fetch(said, **fields)
        assert not int(answer.error_code), answer
        return taken(answer)

    def acknowledge(self, index: int, *said: tuple[int, int, int], **fields: Any) -> ErrorCode:
        """A ShareAcknowledge of one partition."""
        node = self.node
        others, node.context = node.context, self.context
        part = {"partition_index": index, "acknowledgement_batches": batches(said)}
        asked: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "is_renew_ack": False,
            "topics": [{"topic_id": self.topic_id, "partitions": [part]}],
        }
        answer = ask(node, "ShareAcknowledge", 2, **{**asked, **fields})
        node.context = others
        if int(answer.error_code):
            return ErrorCode(int(answer.error_code))
        self.session_epoch += 1
        [topic] = answer.responses
        [row] = topic.partitions
        return ErrorCode(int(row.error_code))

    def lose_connection(self) -> None:
        with self.node.broker.turn:
            self.context.lost()


def batches(said: Any) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in said
    ]


def rows(answer: Any) -> dict[int, Any]:
    """The partitions of an answer of one topic."""
    return {row.partition_index: row for topic in answer.responses for row in topic.partitions}


def taken(answer: Any) -> list[bytes]:
    return [
        value
        for row in rows(answer).values()
        for value in values_of(bytes(row.records or b""), row.acquired_records)
    ]


def counts(answer: Any) -> dict[int, int]:
    """The delivery count of each offset that was acquired."""
    return {
        offset: each.delivery_count
        for row in rows(answer).values()
        for each in row.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)

"""How a leader answers its followers: only news, in turn, again if they were not used."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from tests.support.in_memory_cluster import InMemoryCluster, joined
from tests.unit.broker.test_broker_timers_and_purgatory import CountingWaiter
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import PendingAnswer
from tidelog.client.requests import frame_prefix
from tidelog.model.errors import ErrorCode
from tidelog.protocol.fetch import FetchPartition, FetchRequest
from tidelog.protocol.fetch_client import FOLLOWER_VERSION, FetchAnswer, decode_response, encode_request

FETCH = 1


class Follower:
    """A follower played by the test, over a connection of its own."""

    def __init__(self, cluster: InMemoryCluster, partitions: int = 3) -> None:
        self.cluster = cluster
        self.topic_id: UUID = cluster.create_topic("t", partitions=partitions, replication_factor=2)
        cluster.run_for(50)
        self.leader = cluster.nodes[1]
        state = [cluster.state("t", index) for index in range(partitions)]
        self.led = [index for index in range(partitions) if state[index].leader == 1]
        cluster.freeze(2)
        # The real follower has a session: ours takes its place.
        self.epoch = self.leader.broker.image.brokers[2].epoch
        self.session_id = 0
        self.session_epoch = 0

    def ask(self, *wanted: tuple[int, int], forget: tuple[int, ...] = (), **how: Any) -> Any:
        rows = [FetchPartition(index, 0, offset, -1, 0, 1 << 20) for index, offset in wanted]
        asked = FetchRequest(
            2,
            how.get("max_wait_ms", 500),
            1,
            how.get("max_bytes", 1 << 20),
            0,
            self.session_id,
            self.session_epoch,
            [(self.topic_id, rows)] if rows else [],
            [(self.topic_id, list(forget))] if forget else [],
            "",
            how.get("replica_epoch", self.epoch),
        )
        body = encode_request(FOLLOWER_VERSION, asked)
        frame = frame_prefix(FETCH, FOLLOWER_VERSION, 1, b"broker-2", len(body))[4:] + body
        context = ConnectionContext("host2", 1, "PLAINTEXT")
        answer = self.leader.dispatcher.handle(context, memoryview(bytearray(frame)))
        self.leader.broker.turn.wake()
        self.session_epoch += 1
        return answer

    def open(self) -> FetchAnswer[UUID]:
        answer = read(self.ask(*((index, 0) for index in self.led)))
        self.session_id = answer.session_id
        return answer

    def append(self, index: int, value: bytes = b"v") -> None:
        produced = self.cluster.produce(1, "t", value, index=index, acks=1)
        self.cluster.run_until(lambda: produced)


def read(answer: Any) -> FetchAnswer[UUID]:
    chunks = answer.chunks if isinstance(answer, PendingAnswer) else answer
    assert chunks is not None, "no answer yet"
    return decode_response(FOLLOWER_VERSION, memoryview(joined(chunks))[9:])


def indexes(answer: FetchAnswer[UUID]) -> list[int]:
    return [row.partition for row in answer.partitions]


def follower(partitions: int = 6) -> Follower:
    return Follower(InMemoryCluster((1, 2)), partitions)


def test_the_first_answer_tells_of_all_and_the_next_only_of_news() -> None:
    one = follower()
    assert indexes(one.open()) == one.led and len(one.led) > 1
    waiting = one.ask()
    assert isinstance(waiting, PendingAnswer) and waiting.chunks is None
    one.append(one.led[1], b"news")
    answer = read(waiting)
    assert indexes(answer) == [one.led[1]] and b"news" in bytes(answer.partitions[0].records)


def test_a_higher_watermark_is_news() -> None:
    one = follower()
    one.append(one.led[0])
    one.open()
    answer = read(one.ask((one.led[0], 1)))
    assert indexes(answer) == [one.led[0]]
    assert (answer.partitions[0].high_watermark, len(answer.partitions[0].records)) == (1, 0)
    assert one.ask().chunks is None, "it is known now"


def test_what_was_not_used_is_sent_again() -> None:
    one = follower()
    one.append(one.led[0], b"once")
    one.open()
    for _ in range(3):
        answer = read(one.ask())
        assert indexes(answer) == [one.led[0]] and b"once" in bytes(answer.partitions[0].records)
    assert indexes(read(one.ask((one.led[0], 1)))) == [one.led[0]]  # the watermark
    assert one.ask().chunks is None


def test_everyone_gets_a_turn_when_bytes_are_few() -> None:
    one = follower()
    one.open()
    for index in one.led:
        one.append(index, b"x" * 500)
    told: list[int] = []
    offsets = dict.fromkeys(one.led, 0)
    wanted: list[tuple[int, int]] = []
    for _ in range(2 * len(one.led)):
        answer = read(one.ask(*wanted, max_bytes=600))
        wanted = []
        for row in answer.partitions:
            if len(row.records):
                told.append(row.partition)
                offsets[row.partition] = 1
                wanted.append((row.partition, 1))
        if all(offsets.values()):
            break
    assert sorted(told) == one.led


def test_a_second_request_ends_the_wait_of_the_first() -> None:
    one = follower()
    one.open()
    first = one.ask()
    assert first.chunks is None
    second = one.ask((one.led[0], 0), forget=(one.led[0],))
    assert indexes(read(first)) == []
    assert indexes(read(second)) == [one.led[0]], "forgotten and named: told anew"


def test_a_forgotten_partition_is_silent_and_an_empty_session_ends() -> None:
    one = follower()
    one.open()
    one.ask(forget=(one.led[0],))
    waiting = one.ask()
    one.append(one.led[0])
    assert waiting.chunks is None
    assert read(one.ask(forget=tuple(one.led[1:]))).session_id == 0
    assert read(one.ask()).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    feeds_left = [
        waiter
        for partition in one.leader.broker.replicas.led.values()
        for waiter in partition.waiters
        if type(waiter).__name__ == "FollowerFeed"
    ]
    assert feeds_left == []


def test_a_partition_that_is_led_elsewhere_is_an_error_at_once() -> None:
    one = follower()
    one.open()
    waiting = one.ask()
    image = one.leader.broker.image
    partition = one.leader.broker.replicas.led["t", one.led[0]]
    state = image.topics["t"].partitions[one.led[0]]
    others: list[str] = []
    other = CountingWaiter()
    other.deliver_to(others.append)
    one.leader.broker.purgatory.park(other, (partition,), 1 << 60)
    one.leader.broker.roles._follow(partition, replace(state, leader=2, leader_epoch=1))
    assert others == ["expired"] and not partition.waiters
    one.leader.broker.turn.wake()
    one.leader.broker.follower_feeds.answer_due()
    answer = read(waiting)
    assert [(row.partition, row.error) for row in answer.partitions] == [
        (one.led[0], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ]


def test_an_earlier_life_is_sent_back() -> None:
    one = follower()
    one.open()
    assert read(one.ask(replica_epoch=one.epoch - 1)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

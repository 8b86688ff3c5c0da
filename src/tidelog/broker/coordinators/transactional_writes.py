"""Transactional batches on their way into partitions: verified, and in the order they came in (KIP-890).

The first batch of a transaction in a partition needs the coordinator's word, which may come from another
broker and take its time. A producer has several requests in flight, so more of its batches arrive meanwhile.
They must be appended behind the first one, and must not be judged before it: a producer that the partition
does not know yet is known once its first batch is there. In Kafka the order is the connection's, from which
no request is read before the last one is answered. Here it is the producer's: its requests wait in a queue,
and each is looked at when it is at the front. Batches of a transaction that is open here pass at once.

Three rules of Kafka's are kept at the front of the queue:

- A coordinator that is busy with the last transaction (CONCURRENT_TRANSACTIONS) is asked again by the broker,
  for producers of transactions v2: every `add.partitions.to.txn.retry.backoff.ms`, for at most
  `add.partitions.to.txn.retry.backoff.max.ms`.
- A batch that was refused may come again. Until it does, batches with higher sequences of a producer that is
  new to the partition are out of order while it has that epoch: the lowest sequence is remembered until the
  log knows the producer, by a batch or a marker that was appended here or that came from another leader.
- Producers of transactions v2 start every epoch at sequence 0, also where the partition does not know them.
  That is looked at behind the coordinator's word: a batch that is refused for it has its partition added.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tidelog.broker.coordinators.transaction_guards import TRANSACTIONS_V2
from tidelog.broker.coordinators.transaction_verification import Asked, Results, TransactionVerification
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.producer_state import ProducerState

#: how many sequences are remembered of batches that were refused; the oldest are forgotten first
LOWEST_SEQUENCES_MAX = 10_000


class ProducerKey(NamedTuple):
    """Who writes: batches of one key are appended in the order in which they came."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Write:
    """The transactional batches of one Produce request.

    `append` is called once, with the partitions whose batches must not be appended, and appends the others
    before it returns.
    """

    __slots__ = (
        "append",
        "asked",
        "asked_at_ms",
        "client_version",
        "key",
        "sequences",
        "verdict",
    )

    def __init__(
        self,
        key: ProducerKey,
        sequences: Mapping[TopicPartition, int],
        client_version: int,
        append: Callable[[Results], None],
    ) -> None:
        self.key = key
        self.sequences = sequences
        self.client_version = client_version
        self.append = append
        self.asked: tuple[TopicPartition, ...] = ()
        self.asked_at_ms: int | None = None
        self.verdict: dict[TopicPartition, ErrorCode] | None = None

    def __repr__(self) -> str:
        return f"<Write {self.key.transactional_id} partitions={len(self.sequences)}>"


class Surroundings(Protocol):
    """What the queues need of a broker."""

    def monotonic_ms(self) -> int: ...

    def set_after(self, key: object, delay_ms: int, callback: Callable[[], None]) -> None: ...

    def retry_ms(self) -> tuple[int, int]:
        """The wait before a busy coordinator is asked again, and for how long that is done."""

    def producers(self, place: TopicPartition) -> ProducerState | None:
        """The producers of a partition; None if it is not led here."""

    def verify_or_add(self, asked: Asked, answer: Callable[[Results], None]) -> None:
        """Ask the coordinator; `answer` is called once, perhaps at once."""


class BrokerSurroundings:
    """A broker as the queues see it."""

    def __init__(
        self,
        verification: TransactionVerification,
        replicas: Replicas,
        timers: Timers,
        settings: LiveSettings,
    ) -> None:
        self.verify_or_add = verification.verify_or_add
        self.monotonic_ms = timers.monotonic_ms
        self.set_after = timers.set_after
        self._replicas = replicas
        self._settings = settings

    def retry_ms(self) -> tuple[int, int]:
        settings = self._settings
        return (
            settings.get_int("add.partitions.to.txn.retry.backoff.ms"),
            min(
                settings.get_int("add.partitions.to.txn.retry.backoff.max.ms"),
                settings.get_int("request.timeout.ms"),
            ),
        )

    def producers(self, place: TopicPartition) -> ProducerState | None:
        partition = self._replicas.leader(*place)
        return None if partition is None else partition.log.producers


class TransactionalWrites:
    """The queues of all transactional producers that write to a broker."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._queues: dict[ProducerKey, deque[Write]] = {}
        self._lowest: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        """Of a producer that is new to a partition: its epoch, and the lowest sequence that was
        refused."""

    def __repr__(self) -> str:
        return f"<TransactionalWrites producers={len(self._queues)} refused={len(self._lowest)}>"

    def submit(self, write: Write) -> None:
        """Append the batches of a request, perhaps at once, when those before them are."""
        queue = self._queues.get(write.key)
        if queue is not None:
            queue.append(write)
            return
        self._look(write)
        if write.verdict is None:
            self._queues[write.key] = deque((write,))
        else:
            self._finish(write, write.verdict)

    def transaction_ended(self, place: TopicPartition, producer_id: int) -> None:
        """A marker of the producer is in the partition's log: what was refused before it comes no more."""
        self._lowest.pop((place, producer_id), None)

    def _serve(self, key: ProducerKey) -> None:
        """Go through the queue as far as there are verdicts."""
        queue = self._queues[key]
        while queue:
            write = queue[0]
            if write.verdict is None:
                self._look(write)
            if write.verdict is None:
                return  # asked: the answer goes on here
            queue.popleft()
            self._finish(write, write.verdict)
        del self._queues[key]

    def _look(self, write: Write) -> None:
        """Judge the write at the front, or ask the coordinator of its transaction."""
        transactional_id, producer_id, producer_epoch = write.key
        refused: dict[TopicPartition, ErrorCode] = {}
        unverified: list[TopicPartition] = []
        for place in write.sequences:
            producers = self._surroundings.producers(place)
            if producers is None or producers.has_open_transaction(producer_id, producer_epoch):
                continue
            epoch = producers.epoch_of(producer_id)
            if epoch is not None and producer_epoch < epoch:
                refused[place] = ErrorCode.INVALID_PRODUCER_EPOCH
            else:
                unverified.append(place)
        write.asked = tuple(unverified)
        if not unverified:
            write.verdict = refused
            return
        if write.asked_at_ms is None:
            write.asked_at_ms = self._surroundings.monotonic_ms()
        at_once = True

        def answered(results: Results) -> None:
            if self._asks_again(write, results):
                return
            write.verdict = refused | {place: error for place, error in results.items() if error}
            if not at_once:
                self._serve(write.key)

        asked = Asked(
            transactional_id, producer_id, producer_epoch, frozenset(unverified), write.client_version
        )
        self._surroundings.verify_or_add(asked, answered)
        at_once = False

    def _asks_again(self, write: Write, results: Results) -> bool:
        """Whether the coordinator is busy, and is asked once more in a while."""
        if write.client_version < TRANSACTIONS_V2:
            return False
        if ErrorCode.CONCURRENT_TRANSACTIONS not in results.values():
            return False
        assert write.asked_at_ms is not None
        wait_ms, retry_for_ms = self._surroundings.retry_ms()
        if self._surroundings.monotonic_ms() - write.asked_at_ms >= retry_for_ms:
            return False
        self._surroundings.set_after(write, wait_ms, lambda: self._serve(write.key))
        return True

    def _finish(self, write: Write, verdict: dict[TopicPartition, ErrorCode]) -> None:
        """Have the batches appended that may be, in the order of their sequences."""
        starts_at_zero = write.client_version >= TRANSACTIONS_V2
        for place in write.asked if self._lowest or starts_at_zero else ():
            sequence = write.sequences[place]
            if place in verdict or sequence == 0 or self._is_known(write.key, place):
                continue
            lowest = self._lowest_sequence(write.key, place)
            if starts_at_zero or (lowest is not None and sequence > lowest):
                verdict[place] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        write.append(verdict)
        for place in write.asked:
            self._remember(write, place)

    def _lowest_sequence(self, key: ProducerKey, place: TopicPartition) -> int | None:
        epoch, sequence = self._lowest.get((place, key.producer_id), (-1, -1))
        return sequence if epoch == key.producer_epoch and not self._is_known(key, place) else None

    def _is_known(self, key: ProducerKey, place: TopicPartition) -> bool:
        """Whether the log orders the producer's batches itself: by what was appended here, or by what came
        from another leader since."""
        producers = self._surroundings.producers(place)
        return producers is not None and producers.epoch_of(key.producer_id) is not None

    def _remember(self, write: Write, place: TopicPartition) -> None:
        """Know, or forget, which batch of a producer that is new to a partition has to come first."""
        _, producer_id, producer_epoch = write.key
        if self._is_known(write.key, place):
            self._lowest.pop((place, producer_id), None)
        else:
            lowest = self._lowest_sequence(write.key, place)
            sequence = write.sequences[place]
            self._lowest.pop((place, producer_id), None)
            if len(self._lowest) >= LOWEST_SEQUENCES_MAX:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[place, producer_id] = (
                producer_epoch,
                sequence if lowest is None else min(lowest, sequence),
            )

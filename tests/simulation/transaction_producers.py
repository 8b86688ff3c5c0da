"""The producers of the transaction world: processes that use a transactional id for a while."""

import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.transactions.commands import AddPartitions, EndTransaction, InitProducerId

if TYPE_CHECKING:
    from tests.simulation.transaction_world import TransactionWorld

PLACES = (*(TopicPartition("t", number) for number in range(3)), TopicPartition("__consumer_offsets", 0))
TIMEOUT_MS = 2_500
IN_FLIGHT_MAX = 5
TRY_AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
#: what only a producer may be told that was replaced, or too slow
OUTSIDER = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class Broken(AssertionError):
    """Something that must hold did not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass(frozen=True)
class Write:
    """A transactional batch for one partition."""

    transactional_id: str
    place: TopicPartition
    producer_id: int
    producer_epoch: int
    sequence: int
    label: int
    client_version: int


class Producer:
    """One process that uses a transactional id, for a while."""

    def __init__(self, world: "TransactionWorld", name: str, transactional_id: str, version: int) -> None:
        self.world = world
        self.name = name
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequences: dict[TopicPartition, int] = {}
        self.committed = 0
        self.waiting = 0
        self.last_delivered = 0
        self.undisturbed = -1
        self.steps = self.script()
        self.stopped = False

    def script(self) -> Generator[Any, Any, None]:
        """Initialize, then one transaction after the other; on a fatal error start again or give up."""
        while True:
            if not (yield from self.initialize()):
                return
            while (yield from self.transaction()):
                if self.committed and not self.world.faulty:
                    return
                if self.world.random.random() < 0.7:
                    yield ("sleep", self.world.random.randrange(1, 300))
                if self.world.random.random() < 0.05:
                    return
            if self.world.random.random() < 0.5:
                return

    def initialize(self) -> Generator[Any, Any, bool]:
        while True:
            answer = yield (
                "coordinator",
                lambda token: InitProducerId(token, self.transactional_id, TIMEOUT_MS),
            )
            error = answer and answer["error_code"]
            if error is ErrorCode.NONE:
                self.adopt(answer)
                self.undisturbed = answer["disturbed"]
                return True
            if error is not None and error not in TRY_AGAIN:
                return False
            yield ("sleep", self.world.random.randrange(10, 120))

    def adopt(self, answer: dict[str, Any]) -> None:
        identity = (answer["producer_id"], answer["producer_epoch"])
        if identity != (self.producer_id, self.producer_epoch):
            self.producer_id, self.producer_epoch = identity
            self.sequences.clear()

    def told(self, error: ErrorCode, *, written: bool = False) -> ErrorCode:
        """Look at an error that ends a transaction: is it one that a producer in good standing may get?"""
        if error in OUTSIDER or (written and error is ErrorCode.INVALID_TXN_STATE):
            disturbed = self.world.disturbed.get(self.transactional_id, 0)
            must(
                disturbed != self.undisturbed, f"{self.name} of {self.transactional_id} was told {error.name}"
            )
        return error

    def transaction(self) -> Generator[Any, Any, bool]:
        world = self.world
        label = world.begin(self)
        if self.version >= 2 and world.random.random() < 0.1:
            # Begun and given up before anything of it arrived.
            return (yield from self.end(label, commit=False))
        chosen = world.random.sample(PLACES, world.random.randrange(1, 4))
        complete = True
        for place in chosen:
            if self.version < 2:
                added = yield from self.until_answered(functools.partial(self.add, place), hasty_for=place)
                if added is not ErrorCode.NONE:
                    return False
                if world.faulty and world.random.random() < 0.03:
                    yield ("sleep", world.random.randrange(500, 6_000))
            if not (yield from self.write(place, label, world.random.randrange(1, IN_FLIGHT_MAX))):
                if self.version < 2:
                    # What became of those behind the refused one is not known: it needs a new epoch.
                    yield from self.end(label, commit=False)
                    return False
                complete = False
        if world.faulty and world.random.random() < 0.12:
            yield ("sleep", world.random.randrange(500, 6_000))
        commit = complete and (not world.faulty or world.random.random() < 0.75)
        return (yield from self.end(label, commit))

    def add(self, place: TopicPartition) -> Any:
        asked = AddPartitions(
            0, self.transactional_id, self.producer_id, self.producer_epoch, frozenset({place})
        )
        return "coordinator", lambda token: replace(asked, token=token)

    def write(self, place: TopicPartition, label: int, count: int) -> Generator[Any, Any, bool]:
        """Write batches to a partition, all in flight at once; again from the first that must come again."""
        while count:
            first = self.sequences.get(place, 0)
            answers = yield "partition", [self.batch(place, first + n, label) for n in range(count)]
            if answers is None and self.world.faulty and self.world.random.random() < 0.5:
                return False  # it took too long
            for error in answers or ():
                if error is not ErrorCode.NONE:
                    if error not in TRY_AGAIN:
                        self.told(error, written=True)
                        return False
                    break
                count -= 1
                self.sequences[place] = self.sequences.get(place, 0) + 1
                self.world.acknowledged(label, place)
            if count:
                yield ("sleep", self.world.random.randrange(10, 120))
        return True

    def batch(self, place: TopicPartition, sequence: int, label: int) -> Write:
        return Write(
            self.transactional_id,
            place,
            self.producer_id,
            self.producer_epoch,
            sequence,
            label,
            self.version,
        )

    def until_answered(
        self, ask: Callable[[], Any], *, hasty_for: TopicPartition | None = None
    ) -> Generator[Any, Any, ErrorCode]:
        """Ask until there is an answer. A hasty producer at times goes on without one, and verification must
        stop it (except where its last transaction is still open, which only transactions v2 can tell).
        """
        while True:
            answer = yield ask()
            error: ErrorCode | None = answer and answer["error_code"]
            if error is not ErrorCode.NONE and hasty_for is not None and self.is_hasty(hasty_for):
                return ErrorCode.NONE
            if error is not None and error not in TRY_AGAIN:
                return self.told(error)
            yield ("sleep", self.world.random.randrange(10, 120))

    def is_hasty(self, place: TopicPartition) -> bool:
        open_there = self.world.partitions[place].producers.has_open_transaction(self.producer_id)
        return self.world.faulty and not open_there and self.world.random.random() < 0.2

    def end(self, label: int, commit: bool) -> Generator[Any, Any, bool]:
        asked = EndTransaction(
            0, self.transactional_id, self.producer_id, self.producer_epoch, commit, self.version
        )
        while True:
            answer = yield "coordinator", lambda token: replace(asked, token=token)
            error = answer and answer["error_code"]
            if error is ErrorCode.NONE:
                self.world.ended(label, commit)
                self.committed += commit
                if self.version >= 2:
                    self.adopt(answer)
                return True
            if error is not None and error not in TRY_AGAIN:
                self.told(error)
                return False
            yield ("sleep", self.world.random.randrange(10, 120))

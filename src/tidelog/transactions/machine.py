"""The transaction coordinator of one partition of `__transaction_state`: a pure machine.

    effects = machine.handle(command, now_ms)         decide
    machine.wrote(token, base_offset, now_ms)         the append is in the log: apply its records
    machine.appended(token, now_ms)                   it is replicated: tell those who wait for that, go on
    machine.append_refused(token, code, now_ms)       it is not in the log (or not replicated in time)

Each returns further effects. A refusal before `wrote` leaves everything as it was; after `wrote` it only
changes the answer, and the id stays in transition until `appended`, for the record may still get through.

Loading is `apply` for every record in order, then `loaded`, which takes decided transactions up again;
`resign` ends it.

AddPartitions of an id that is busy waits a little for the step under way, since the next transaction of a
producer begins while the markers of its last one are written, and the leaders of its partitions all ask at
once. Those that waited are stored together. Who waited too long is told CONCURRENT_TRANSACTIONS.

How a transaction ends: the outcome is stored (PrepareCommit, PrepareAbort), the producer is answered, markers
are sent to every partition until each has one, and the completion is stored. A coordinator that takes over
in between sends the markers again; a partition that has its marker already does not mind.
"""

from collections.abc import Iterable
from functools import partial

from tidelog.model.effects import Effect
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from tidelog.model.step_effects import coordinator_error
from tidelog.transactions import arguments
from tidelog.transactions.commands import (
    NO_TIMEOUT_MS,
    AbortTimedOut,
    AddPartitions,
    Command,
    EndTransaction,
    ExpireTransactionalIds,
    InitProducerId,
    MarkersToWrite,
    MarkersWritten,
    TimerFired,
)
from tidelog.transactions.end_rules import end_verdict
from tidelog.transactions.outbox import OnAppended, OnFailed, Outbox
from tidelog.transactions.responses import producer
from tidelog.transactions.schemas import FIRST_FLEXIBLE_VALUE_VERSION, read_key, read_value
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.states import TransactionState
from tidelog.transactions.transaction import (
    TRANSACTIONS_V2,
    Transaction,
    is_epoch_exhausted,
    new_transaction,
)

_DECIDED_ELSEWHERE = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Answers to a marker after which the partition needs none: a newer epoch writes there, which can only be
when this transaction was ended there before; or the partition is gone. (Kafka stops sending at the first and
leaves the transaction undecided until the coordinator moves.)
"""


class TransactionMachine:
    """All transactional ids that hash to one partition."""

    def __init__(self, partition: int, coordinator_epoch: int, settings: TransactionSettings) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        self._settings = settings
        self._ongoing: dict[str, None] = {}
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._waiting: dict[str, list[tuple[int, AddPartitions]]] = {}
        """Until when each waits, in that order."""
        self._outbox = Outbox(partition, min(settings.transaction_version, FIRST_FLEXIBLE_VALUE_VERSION))

    def __repr__(self) -> str:
        return f"<TransactionMachine partition={self.partition} ids={len(self.transactions)}>"

    def reconfigure(self, settings: TransactionSettings) -> None:
        self._settings = settings
        self._outbox.value_version = min(settings.transaction_version, FIRST_FLEXIBLE_VALUE_VERSION)

    # ------------------------------------------------------------ deciding

    def handle(self, command: Command, now_ms: int) -> list[Effect]:
        refusal = arguments.refusal(command, self._settings)
        if refusal is not None:
            return [refusal]
        self._take(command, now_ms)
        return self._outbox.take()

    def _take(self, command: Command, now_ms: int) -> None:
        match command:
            case AddPartitions():
                self._ask_to_add(command, now_ms)
            case EndTransaction():
                self._end(command, now_ms)
            case MarkersWritten():
                self._markers_written(command, now_ms)
            case InitProducerId():
                self._init_producer_id(command, now_ms)
            case TimerFired():
                self._timer_fired(command, now_ms)
            case AbortTimedOut():
                self._abort_timed_out(now_ms)
            case ExpireTransactionalIds():
                self._expire(now_ms)

    def needs_producer_id(self, command: Command) -> bool:
        """Whether the command will be refused for want of a `spare_producer_id`."""
        if arguments.refusal(command, self._settings) is not None:
            return False
        match command:
            case InitProducerId():
                transaction = self.transactions.get(command.transactional_id)
                if self._init_fault(command, transaction) is not ErrorCode.NONE:
                    return False
                return transaction is None or _rotates(command, transaction)
            case EndTransaction():
                transaction = self.transactions.get(command.transactional_id)
                return (
                    transaction is not None
                    and command.client_version >= TRANSACTIONS_V2
                    and (command.producer_id, command.producer_epoch)
                    == (transaction.producer_id, transaction.producer_epoch)
                    and is_epoch_exhausted(command.producer_epoch)
                    and not self._is_busy(command.transactional_id, transaction)
                )
        return False

    def _is_busy(self, transactional_id: str, transaction: Transaction | None) -> bool:
        """On the way from one state to another, which includes the writing of markers.

        Looked at before the producer's id and epoch: with transactions v2 it may know those that it will have
        when the step is done, which are not stored yet where the epochs were used up.
        """
        return transactional_id in self._outbox.in_transition or (
            transaction is not None and transaction.is_prepared
        )

    # ------------------------------------------------------------ InitProducerId

    def _init_fault(self, command: InitProducerId, transaction: Transaction | None) -> ErrorCode:
        if self._is_busy(command.transactional_id, transaction):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction is None:
            return ErrorCode.NONE
        if command.producer_id not in (NO_PRODUCER_ID, transaction.producer_id) and not (
            # Perhaps a retry whose answer, a new producer id, was lost.
            command.producer_id == transaction.previous_producer_id
            and is_epoch_exhausted(command.producer_epoch)
        ):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def _init_producer_id(self, command: InitProducerId, now_ms: int) -> None:
        transactional_id = command.transactional_id
        transaction = self.transactions.get(transactional_id)
        error = self._init_fault(command, transaction)
        if error is not ErrorCode.NONE:
            self._outbox.reply(command.token, producer(error))
            return
        if transaction is not None and transaction.state is TransactionState.ONGOING:
            self._fence(transaction, command, now_ms)
            return
        after = self._initialized(command, transaction, now_ms)
        if isinstance(after, ErrorCode):
            self._outbox.reply(command.token, producer(after))
            return
        self._outbox.append(
            self.transactions,
            {transactional_id: after},
            partial(self._reply_later, command.token, producer(ErrorCode.NONE, after)),
            partial(self._fail_producer, command.token),
        )

    def _initialized(
        self, command: InitProducerId, transaction: Transaction | None, now_ms: int
    ) -> Transaction | ErrorCode:
        expected_epoch = None if command.producer_id == NO_PRODUCER_ID else command.producer_epoch
        spare = command.spare_producer_id
        if transaction is None:
            if spare is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return new_transaction(command.transactional_id, spare, command.stored_timeout_ms, now_ms)
        if _rotates(command, transaction):
            if spare is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return transaction.with_new_producer_id(spare, command.stored_timeout_ms, expected_epoch, now_ms)
        return transaction.with_bumped_epoch(command.stored_timeout_ms, expected_epoch, now_ms)

    def _fence(self, transaction: Transaction, command: InitProducerId, now_ms: int) -> None:
        """Abort what the last producer left open. The new one is told to ask again, when that is done."""
        self._outbox.event(
            "transaction aborted",
            {"transactional_id": transaction.transactional_id, "producer_id": transaction.producer_id},
            "a new producer took the transactional id over",
        )
        # Client version 0: no retry of the fenced producer's EndTxn may be answered with the bumped epoch.
        self._decide(
            transaction.fenced(0, now_ms, recovers=command.producer_id != NO_PRODUCER_ID),
            partial(self._reply_later, command.token, producer(ErrorCode.CONCURRENT_TRANSACTIONS)),
            partial(self._fail_producer, command.token),
        )

    # ------------------------------------------------------------ adding and verifying partitions

    def _ask_to_add(self, command: AddPartitions, now_ms: int) -> None:
        transactional_id = command.transactional_id
        if not self._is_busy(transactional_id, self.transactions.get(transactional_id)):
            self._add_partitions(transactional_id, [command], now_ms)
        elif self._settings.add_partitions_wait_ms:
            waiting = self._waiting.setdefault(transactional_id, [])
            deadline_ms = now_ms + self._settings.add_partitions_wait_ms
            waiting.append((deadline_ms, command))
            if len(waiting) == 1:
                self._outbox.set_timer(("waiting", transactional_id), deadline_ms)
        else:
            self._outbox.reply(command.token, {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS})

    def _add_partitions(self, transactional_id: str, commands: list[AddPartitions], now_ms: int) -> None:
        """Add the partitions of everyone who may, with one record."""
        before = after = self.transactions.get(transactional_id)
        tokens: list[int] = []
        for command in commands:
            error = self._producer_fault(
                before, transactional_id, command.producer_id, command.producer_epoch
            )
            if after is None or error is not ErrorCode.NONE:
                self._outbox.reply(command.token, {"error_code": error})
                continue
            tokens.append(command.token)
            if after.state is not TransactionState.ONGOING or not command.partitions <= after.partitions:
                after = after.with_partitions(command.partitions, command.client_version, now_ms)
        if after is before or after is None:
            for token in tokens:
                self._outbox.reply(token, {"error_code": ErrorCode.NONE})
            return

        def reply(error: ErrorCode) -> None:
            for token in tokens:
                self._outbox.reply(token, {"error_code": error})

        self._outbox.append(
            self.transactions,
            {transactional_id: after},
            lambda now_ms: reply(ErrorCode.NONE),
            lambda error, now_ms: reply(coordinator_error(error)),
        )

    def _add_those_that_wait(self, transactional_ids: Iterable[str], now_ms: int) -> None:
        """A step of these ids is done: perhaps it is the turn of those who waited for it."""
        for transactional_id in transactional_ids if self._waiting else ():
            if self._is_busy(transactional_id, self.transactions.get(transactional_id)):
                continue
            waiting = self._waiting.pop(transactional_id, None)
            if waiting is not None:
                self._outbox.cancel_timer(("waiting", transactional_id))
                self._add_partitions(transactional_id, [command for _, command in waiting], now_ms)

    def _stop_waiting(self, transactional_id: str, now_ms: int) -> None:
        """Tell those who waited too long; the others wait on."""
        waiting = self._waiting.pop(transactional_id, [])
        late = [command for deadline_ms, command in waiting if deadline_ms <= now_ms]
        for command in late:
            self._outbox.reply(command.token, {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS})
        if len(late) < len(waiting):
            self._waiting[transactional_id] = waiting[len(late) :]
            self._outbox.set_timer(("waiting", transactional_id), waiting[len(late)][0])

    @staticmethod
    def _producer_fault(
        transaction: Transaction | None, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if transaction is None or transaction.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if transaction.producer_epoch != producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Say of each partition whether it belongs to the producer's open transaction (KIP-890).

        Only what is replicated counts: a write on the word of a record that is lost would never be ended.
        """
        transaction = self.transactions.get(transactional_id)
        missing = ErrorCode.TRANSACTION_ABORTABLE
        if transactional_id in self._outbox.in_transition:
            missing = ErrorCode.CONCURRENT_TRANSACTIONS
            if transaction is None or not transaction.is_prepared:
                transaction = self._outbox.in_transition[transactional_id]
        error = self._producer_fault(transaction, transactional_id, producer_id, producer_epoch)
        if transaction is None or error is not ErrorCode.NONE:
            return dict.fromkeys(partitions, error)
        if transaction.is_prepared:
            return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
        return {place: ErrorCode.NONE if place in transaction.partitions else missing for place in partitions}

    # ------------------------------------------------------------ ending

    def _end(self, command: EndTransaction, now_ms: int) -> None:
        transaction = self.transactions.get(command.transactional_id)
        in_transition = command.transactional_id in self._outbox.in_transition
        verdict = end_verdict(command, transaction, in_transition)
        if verdict is not None:
            known = transaction if verdict is ErrorCode.NONE else None
            self._outbox.reply(command.token, producer(verdict, known))
            return
        assert transaction is not None
        next_producer_id = NO_PRODUCER_ID
        if command.client_version >= TRANSACTIONS_V2 and transaction.is_epoch_exhausted:
            if command.spare_producer_id is None:
                self._outbox.reply(command.token, producer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
            next_producer_id = command.spare_producer_id
        prepared = transaction.prepared(
            committed=command.committed,
            client_version=command.client_version,
            next_producer_id=next_producer_id,
            now_ms=now_ms,
        )
        # The producer goes on as who it will be when the markers are written.
        answer = producer(ErrorCode.NONE, prepared.completed(now_ms))
        self._decide(
            prepared,
            partial(self._reply_later, command.token, answer),
            partial(self._fail_producer, command.token),
        )

    def _decide(self, prepared: Transaction, on_appended: OnAppended, on_failed: OnFailed) -> None:
        """Store an outcome; when it is safe, answer and start with the markers."""

        def decided(now_ms: int) -> None:
            on_appended(now_ms)
            self._start_completion(prepared.transactional_id, now_ms)

        self._outbox.append(self.transactions, {prepared.transactional_id: prepared}, decided, on_failed)

    def _start_completion(self, transactional_id: str, now_ms: int) -> None:
        transaction = self.transactions[transactional_id]
        assert transaction.is_prepared
        self._unmarked[transactional_id] = set(transaction.partitions)
        self._go_on(transactional_id, now_ms)

    def _go_on(self, transactional_id: str, now_ms: int) -> None:
        """Send the markers that are missing; when none is, store the completion."""
        transaction = self.transactions[transactional_id]
        unmarked = self._unmarked[transactional_id]
        if not unmarked:
            self._complete(transaction, now_ms)
            return
        self._outbox.set_timer(("markers", transactional_id), now_ms + self._settings.marker_retry_ms)
        self._outbox.send(
            MarkersToWrite(
                transactional_id=transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                coordinator_epoch=self.coordinator_epoch,
                committed=transaction.state is TransactionState.PREPARE_COMMIT,
                partitions=frozenset(unmarked),
                transaction_version=transaction.client_version,
            )
        )

    def _markers_written(self, command: MarkersWritten, now_ms: int) -> None:
        transaction = self.transactions.get(command.transactional_id)
        unmarked = self._unmarked.get(command.transactional_id)
        if (
            transaction is None
            or unmarked is None
            or (transaction.producer_id, transaction.producer_epoch)
            != (command.producer_id, command.producer_epoch)
        ):
            return
        for place, error in command.results.items():
            if error is ErrorCode.NONE or error in _DECIDED_ELSEWHERE:
                unmarked.discard(place)
        if not unmarked and command.transactional_id not in self._outbox.in_transition:
            self._outbox.cancel_timer(("markers", command.transactional_id))
            self._complete(transaction, now_ms)

    def _complete(self, transaction: Transaction, now_ms: int) -> None:
        transactional_id = transaction.transactional_id

        def on_appended(now_ms: int) -> None:
            del self._unmarked[transactional_id]

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            self._outbox.set_timer(("markers", transactional_id), now_ms + self._settings.marker_retry_ms)

        self._outbox.append(
            self.transactions, {transactional_id: transaction.completed(now_ms)}, on_appended, on_failed
        )

    def _timer_fired(self, command: TimerFired, now_ms: int) -> None:
        assert isinstance(command.key, tuple)
        kind, transactional_id = command.key
        if kind == "waiting":
            self._stop_waiting(transactional_id, now_ms)
            return
        assert kind == "markers"
        if transactional_id in self._unmarked and transactional_id not in self._outbox.in_transition:
            self._go_on(transactional_id, now_ms)

    # ------------------------------------------------------------ time

    def _abort_timed_out(self, now_ms: int) -> None:
        for transactional_id in list(self._ongoing):
            transaction = self.transactions[transactional_id]
            if transactional_id in self._outbox.in_transition or transaction.timeout_ms == NO_TIMEOUT_MS:
                continue
            if transaction.start_ms + transaction.timeout_ms >= now_ms:
                continue
            self._outbox.event(
                "transaction aborted",
                {"transactional_id": transactional_id, "producer_id": transaction.producer_id},
                f"it was open for more than {transaction.timeout_ms} ms",
            )
            # A producer of transactions v2 may go on when it learns of this from EndTxn, unless the next
            # epoch is the one that nobody may have. A refused abort is tried again at the next tick.
            version = 0 if transaction.is_epoch_exhausted else transaction.client_version
            fenced = transaction.fenced(version, now_ms)
            self._decide(fenced, lambda now_ms: None, lambda error, now_ms: None)

    def _expire(self, now_ms: int) -> None:
        limit_ms = now_ms - self._settings.transactional_id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transaction.is_idle
            and transaction.update_ms <= limit_ms
            and transactional_id not in self._outbox.in_transition
        ]
        size = self._settings.tombstones_per_batch_max
        for start in range(0, len(expired), size):
            tombstones = dict.fromkeys(expired[start : start + size])
            self._outbox.append(
                self.transactions, tombstones, lambda now_ms: None, lambda error, now_ms: None
            )

    # ------------------------------------------------------------ answers that wait

    def _reply_later(self, token: int, response: dict[str, object], now_ms: int) -> None:
        self._outbox.reply(token, response)

    def _fail_producer(self, token: int, error: ErrorCode, now_ms: int) -> None:
        self._outbox.reply(token, producer(coordinator_error(error)))

    # ------------------------------------------------------------ verdicts on appends

    def wrote(self, token: int, base_offset: int, now_ms: int) -> list[Effect]:
        """The records are in our log: they are the state now."""
        pending = self._outbox.pending[token]
        pending.written = True
        for key, value in pending.records:
            self.apply(key, value)
        for transactional_id, transaction in pending.after.items():
            if transaction is not None:
                assert self.transactions[transactional_id] == transaction.stored()
                self.transactions[transactional_id] = transaction
        return self._outbox.take()

    def appended(self, token: int, now_ms: int) -> list[Effect]:
        """The records survive us: answer, and go on."""
        pending = self._outbox.settle(token)
        assert pending.written
        if pending.on_failed is None:
            # The callers were told that it failed; what follows from the record still has to happen.
            self._resume(pending.after, now_ms)
        else:
            pending.on_appended(now_ms)
        self._add_those_that_wait(pending.after, now_ms)
        return self._outbox.take()

    def append_refused(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Not in the log: as if never asked. Written but not replicated in time: tell those who wait, and
        stay in transition.
        """
        pending = self._outbox.pending[token]
        on_failed = pending.on_failed
        if pending.written:
            pending.on_failed = None
        else:
            self._outbox.settle(token)
        if on_failed is not None:
            on_failed(error, now_ms)
        self._add_those_that_wait(pending.after, now_ms)
        return self._outbox.take()

    def _resume(self, transactional_ids: Iterable[str], now_ms: int) -> None:
        for transactional_id in transactional_ids:
            transaction = self.transactions.get(transactional_id)
            if transaction is not None and transaction.is_prepared:
                self._start_completion(transactional_id, now_ms)
            else:
                self._unmarked.pop(transactional_id, None)

    # ------------------------------------------------------------ state from records

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record of the log in; raises `schemas.UnreadableRecord` for bytes no Kafka of our time
        wrote.
        """
        transactional_id = read_key(key)
        if transactional_id is None:
            return
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._ongoing.pop(transactional_id, None)
            return
        transaction = read_value(transactional_id, value)
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = None
        else:
            self._ongoing.pop(transactional_id, None)

    def loaded(self, now_ms: int) -> list[Effect]:
        """All records are applied: decided transactions are completed."""
        for transactional_id, transaction in self.transactions.items():
            if transaction.is_prepared:
                self._start_completion(transactional_id, now_ms)
        return self._outbox.take()

    def resign(self, now_ms: int) -> list[Effect]:
        """Leadership is gone: everyone who waits here must ask elsewhere. Nothing is written any more."""
        effects: list[Effect] = []
        for token in list(self._outbox.pending):
            pending = self._outbox.settle(token)
            if pending.on_failed is not None:
                pending.on_failed(ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms)
            effects += self._outbox.take()
        for waiting in self._waiting.values():
            for _, command in waiting:
                self._outbox.reply(command.token, {"error_code": ErrorCode.NOT_COORDINATOR})
        self._waiting.clear()
        return effects + self._outbox.take()

    # ------------------------------------------------------------ looking

    def comparable(self) -> dict[str, Transaction]:
        """The whole durable state: equal states compare equal."""
        return {name: transaction.stored() for name, transaction in self.transactions.items()}

    def undecided(self) -> list[str]:
        """Ids whose transaction is open or whose markers are being written."""
        return [
            name
            for name, transaction in self.transactions.items()
            if transaction.state is TransactionState.ONGOING or transaction.is_prepared
        ]

    def unmarked(self, transactional_id: str) -> frozenset[TopicPartition]:
        """The partitions of a transaction that have no marker yet."""
        transaction = self.transactions[transactional_id]
        return frozenset(self._unmarked.get(transactional_id, transaction.partitions))


def _rotates(command: InitProducerId, transaction: Transaction) -> bool:
    """The epochs are used up, and it is the current producer or a new one that asks."""
    return (
        transaction.is_idle
        and transaction.is_epoch_exhausted
        and command.producer_epoch in (NO_PRODUCER_EPOCH, transaction.producer_epoch)
    )

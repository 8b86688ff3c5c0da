"""Deliberate wrong edits of the transaction machine and its neighbours, which the simulation must notice.

A mutant is a sentence and the attribute it replaces while it lives.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tidelog.broker.coordinators.transaction_guards import Guards
from tidelog.broker.coordinators.transactional_writes import TransactionalWrites, Write
from tidelog.model.effects import Append, Reply, SetTimer
from tidelog.model.errors import ErrorCode
from tidelog.storage.producer_state import ProducerState
from tidelog.transactions import machine as machine_module
from tidelog.transactions.commands import AddPartitions
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.outbox import Outbox
from tidelog.transactions.transaction import Transaction

Patch = tuple[Any, str, Any]


def _goes_on_when_written() -> Patch:
    original = TransactionMachine.wrote

    def wrote(self: TransactionMachine, token: int, base_offset: int, now_ms: int) -> Any:
        effects = original(self, token, base_offset, now_ms)
        pending = self._outbox.pending[token]
        pending.on_appended(now_ms)
        pending.on_appended = lambda now_ms: None
        pending.on_failed = lambda error, now_ms: None
        return effects + self._outbox.take()

    return TransactionMachine, "wrote", wrote


def _late_markers_accepted() -> Patch:
    original = ProducerState.check_marker

    def check_marker(self: ProducerState, header: Any, epoch: int, *, transaction_version: int = 0) -> Any:
        return original(self, header, epoch, transaction_version=0)

    return ProducerState, "check_marker", check_marker


def _everything_verified() -> Patch:
    def verify(self: TransactionMachine, name: str, pid: int, epoch: int, partitions: Any) -> Any:
        return dict.fromkeys(partitions, ErrorCode.NONE)

    return TransactionMachine, "verify", verify


def _unreplicated_records_verified() -> Patch:
    original = TransactionMachine.verify

    def verify(self: TransactionMachine, *asked: Any) -> Any:
        kept = self._outbox.in_transition
        self._outbox.in_transition = {}
        try:
            return original(self, *asked)
        finally:
            self._outbox.in_transition = kept

    return TransactionMachine, "verify", verify


def _fencing_keeps_the_epoch() -> Patch:
    original = Transaction.fenced

    def fenced(self: Transaction, *asked: int, **options: bool) -> Transaction:
        return replace(original(self, *asked, **options), producer_epoch=self.producer_epoch)

    return Transaction, "fenced", fenced


def _new_producers_keep_the_epoch() -> Patch:
    original = Transaction.with_bumped_epoch

    def with_bumped_epoch(self: Transaction, *asked: Any) -> Any:
        after: Any = original(self, *asked)
        return replace(after, producer_epoch=max(0, self.producer_epoch))

    return Transaction, "with_bumped_epoch", with_bumped_epoch


def _ends_keep_the_epoch() -> Patch:
    original = Transaction.prepared

    def prepared(self: Transaction, **asked: Any) -> Transaction:
        return replace(original(self, **asked), producer_epoch=self.producer_epoch)

    return Transaction, "prepared", prepared


def _load_leaves_decided_transactions() -> Patch:
    def loaded(self: TransactionMachine, now_ms: int) -> Any:
        return []

    return TransactionMachine, "loaded", loaded


def _refused_markers_count() -> Patch:
    original = TransactionMachine._markers_written

    def markers_written(self: TransactionMachine, command: Any, now_ms: int) -> None:
        results = dict.fromkeys(command.results, ErrorCode.NONE)
        original(self, replace(command, results=results), now_ms)

    return TransactionMachine, "_markers_written", markers_written


def _first_marker_completes() -> Patch:
    original = TransactionMachine._markers_written

    def markers_written(self: TransactionMachine, command: Any, now_ms: int) -> None:
        if command.transactional_id in self._unmarked:
            self._unmarked[command.transactional_id] &= set(command.results)
        original(self, command, now_ms)

    return TransactionMachine, "_markers_written", markers_written


def _lost_markers_are_not_sent_again() -> Patch:
    original = TransactionMachine.handle

    def handle(self: TransactionMachine, command: Any, now_ms: int) -> Any:
        return [effect for effect in original(self, command, now_ms) if not isinstance(effect, SetTimer)]

    return TransactionMachine, "handle", handle


def _refused_completion_is_not_repeated() -> Patch:
    original = TransactionMachine.append_refused

    def append_refused(self: TransactionMachine, *verdict: Any) -> Any:
        return [effect for effect in original(self, *verdict) if not isinstance(effect, SetTimer)]

    return TransactionMachine, "append_refused", append_refused


def _no_timeouts() -> Patch:
    return TransactionMachine, "_abort_timed_out", lambda self, now_ms: None


def _partitions_answered_before_stored() -> Patch:
    original = TransactionMachine.handle

    def handle(self: TransactionMachine, command: Any, now_ms: int) -> Any:
        effects = original(self, command, now_ms)
        if isinstance(command, AddPartitions) and any(isinstance(effect, Append) for effect in effects):
            for pending in self._outbox.pending.values():
                if command.transactional_id in pending.after:
                    pending.on_appended = lambda now_ms: None
                    pending.on_failed = lambda error, now_ms: None
            effects.append(Reply(command.token, {"error_code": ErrorCode.NONE}))
        return effects

    return TransactionMachine, "handle", handle


def _every_end_is_a_retry() -> Patch:
    original = machine_module.end_verdict  # type: ignore[attr-defined]

    def end_verdict(command: Any, transaction: Any, in_transition: bool) -> Any:
        verdict = original(command, transaction, in_transition)
        return ErrorCode.NONE if verdict is ErrorCode.INVALID_TXN_STATE else verdict

    return machine_module, "end_verdict", end_verdict


def _fenced_ends_are_answered() -> Patch:
    original = machine_module.end_verdict  # type: ignore[attr-defined]

    def end_verdict(command: Any, transaction: Any, in_transition: bool) -> Any:
        if transaction is not None and transaction.producer_id == command.producer_id:
            command = replace(command, producer_epoch=transaction.producer_epoch)
        return original(command, transaction, in_transition)

    return machine_module, "end_verdict", end_verdict


def _overflow_keeps_the_producer_id() -> Patch:
    original = Transaction.completed

    def completed(self: Transaction, now_ms: int) -> Transaction:
        after = original(self, now_ms)
        return replace(after, producer_id=self.producer_id, producer_epoch=self.producer_epoch % 32_767)

    return Transaction, "completed", completed


def _open_transactions_expire() -> Patch:
    original = TransactionMachine._expire

    def expire(self: TransactionMachine, now_ms: int) -> None:
        is_idle = Transaction.is_idle
        Transaction.is_idle = property(lambda transaction: not transaction.is_prepared)  # type: ignore
        try:
            original(self, now_ms + 3_500)
        finally:
            Transaction.is_idle = is_idle  # type: ignore[method-assign]

    return TransactionMachine, "_expire", expire


def _refusals_are_taken_for_written() -> Patch:
    original = TransactionMachine.append_refused

    def append_refused(self: TransactionMachine, token: int, error: ErrorCode, now_ms: int) -> Any:
        pending = self._outbox.pending[token]
        if not pending.written:
            for key, value in pending.records:
                self.apply(key, value)
        return original(self, token, error, now_ms)

    return TransactionMachine, "append_refused", append_refused


def _in_transition_is_forgotten() -> Patch:
    original = Outbox.append

    def append(self: Outbox, *asked: Any) -> None:
        self.in_transition.clear()
        original(self, *asked)
        self.in_transition = _Forgetful()

    return Outbox, "append", append


def _judged_before_the_first() -> Patch:
    original = TransactionalWrites.submit

    def submit(self: TransactionalWrites, write: Write) -> None:
        for place, sequence in write.sequences.items():
            producers = self._surroundings.producers(place)
            known = producers is not None and producers.epoch_of(write.key.producer_id) is not None
            if write.client_version >= 2 and sequence != 0 and not known:
                write.append({place: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER})
                return
        original(self, write)

    return TransactionalWrites, "submit", submit


def _nobody_waits_for_the_first() -> Patch:
    original = TransactionalWrites.submit

    def submit(self: TransactionalWrites, write: Write) -> None:
        alone = TransactionalWrites(self._surroundings)
        alone._lowest = self._lowest
        original(alone, write)

    return TransactionalWrites, "submit", submit


def _refused_batches_are_overtaken() -> Patch:
    return TransactionalWrites, "_remember", lambda self, write, place: None


def _refusals_count_for_ever() -> Patch:
    return TransactionalWrites, "_is_known", lambda self, key, place: False


def _epochs_before_pending_steps() -> Patch:
    original = machine_module.end_verdict  # type: ignore[attr-defined]

    def end_verdict(command: Any, transaction: Any, in_transition: bool) -> Any:
        if transaction is not None and transaction.is_prepared and command.client_version >= 2:
            is_retry = transaction.producer_epoch == command.producer_epoch + 1
            if transaction.producer_id == command.producer_id and not is_retry:
                return ErrorCode.PRODUCER_FENCED
        return original(command, transaction, in_transition)

    return machine_module, "end_verdict", end_verdict


def _producer_ids_before_pending_steps() -> Patch:
    original = TransactionMachine._ask_to_add

    def ask_to_add(self: TransactionMachine, command: Any, now_ms: int) -> None:
        transaction = self.transactions.get(command.transactional_id)
        if transaction is not None and transaction.producer_id != command.producer_id:
            self._outbox.reply(command.token, {"error_code": ErrorCode.INVALID_PRODUCER_ID_MAPPING})
        else:
            original(self, command, now_ms)

    return TransactionMachine, "_ask_to_add", ask_to_add


def _those_that_wait_are_believed() -> Patch:
    original = TransactionMachine._add_partitions

    def add_partitions(self: TransactionMachine, name: str, commands: Any, now_ms: int) -> None:
        known = self.transactions.get(name)
        if known is not None and known.update_ms == now_ms:
            identity = {"producer_id": known.producer_id, "producer_epoch": known.producer_epoch}
            commands = [replace(command, **identity) for command in commands]
        original(self, name, commands, now_ms)

    return TransactionMachine, "_add_partitions", add_partitions


def _every_marker_breaks_guards() -> Patch:
    original = Guards.transaction_ended

    def transaction_ended(self: Guards, place: Any, producer_id: int, epoch: int, version: int) -> None:
        original(self, place, producer_id, 2**15, version)

    return Guards, "transaction_ended", transaction_ended


def _no_marker_breaks_guards() -> Patch:
    return Guards, "transaction_ended", lambda self, place, producer_id, epoch, version: None


class _Forgetful(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        return False

    def __delitem__(self, key: str) -> None:
        self.pop(key, None)


MUTANTS: dict[str, Callable[[], Patch]] = {
    "what is written counts before it is replicated": _goes_on_when_written,
    "a late copy of a marker is accepted": _late_markers_accepted,
    "no partition is verified": _everything_verified,
    "partitions are verified by records that may be lost": _unreplicated_records_verified,
    "fencing keeps the epoch": _fencing_keeps_the_epoch,
    "a new producer gets the epoch of the last": _new_producers_keep_the_epoch,
    "transactions v2 ends keep the epoch": _ends_keep_the_epoch,
    "a new coordinator leaves decided transactions alone": _load_leaves_decided_transactions,
    "a refused marker counts": _refused_markers_count,
    "the first marker completes the transaction": _first_marker_completes,
    "a lost marker is not sent again": _lost_markers_are_not_sent_again,
    "a refused completion is not repeated": _refused_completion_is_not_repeated,
    "nothing times out": _no_timeouts,
    "partitions are answered before they are stored": _partitions_answered_before_stored,
    "the other outcome is answered like a retry": _every_end_is_a_retry,
    "a fenced producer may end": _fenced_ends_are_answered,
    "the producer id stays when its epochs are used up": _overflow_keeps_the_producer_id,
    "open transactions expire": _open_transactions_expire,
    "refused records are applied": _refusals_are_taken_for_written,
    "several steps of one id at a time": _in_transition_is_forgotten,
    "batches of an unknown producer are judged before its first one": _judged_before_the_first,
    "batches in flight do not wait for each other": _nobody_waits_for_the_first,
    "a batch that must come again is overtaken": _refused_batches_are_overtaken,
    "a batch that another leader got is waited for": _refusals_count_for_ever,
    "an end is judged by its epoch before the markers of the last are written": _epochs_before_pending_steps,
    "a producer's next id is unknown before it is stored": _producer_ids_before_pending_steps,
    "a marker of the last transaction is taken for one of the next": _every_marker_breaks_guards,
    "a batch lands in a transaction that ended while it was asked about": _no_marker_breaks_guards,
    "those who waited for a step are believed to be the producer": _those_that_wait_are_believed,
}


@contextmanager
def alive(name: str) -> Iterator[None]:
    """Run with the wrong edit in place."""
    holder, attribute, wrong = MUTANTS[name]()
    right = getattr(holder, attribute)
    setattr(holder, attribute, wrong)
    try:
        yield
    finally:
        setattr(holder, attribute, right)

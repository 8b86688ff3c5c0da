"""How a query's output is committed exactly once: the protocol without any I/O (docs/adr/0012).

Every attempt of a task writes in a transaction of its own and leaves it open. The driver then runs `commit`,
a generator that yields what has to be asked of the cluster and is sent the answers:

    claim ──► read the commit log ──► settle an earlier decision ──► is this batch decided already?
      yes ──► abort what this try wrote ──► sweep
      no  ──► write the decision ──► are all transactions still open? ──► commit the decision
              ──► end them ──► mark done ──► sweep

`abandon` is for a batch job whose name nobody else has, when its write or its commit has failed.

The sink carries the requests out with a client (`sink_commits`), the tests with a model of a cluster in which
drivers die, wake up late and overtake each other after every request.

What makes it safe:
- Who claims the query's driver id gets a new epoch of it, and nobody with an earlier one can decide any more.
- So what is read after the claim is all that will ever be decided by others, until the next claim.
- A batch is decided at most once, and its transactions are ended only on the word of the decision.
- Once a batch is decided, whatever was opened for it or an earlier one and is not in the decision is rubbish,
  for ever: anybody may abort it at any time, and `sweep` does. The name of a transaction tells its batch.
"""

import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

COMMIT_LOG_TOPIC = "__tidelog_spark_commits"
DECISION_VERSION = 1
NOTHING_DONE = -1
_SEPARATOR = "."


class Transaction(NamedTuple):
    """What it takes to end a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Driver(NamedTuple):
    """The driver id of a query under the epoch that a claim gave."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Outcome(Enum):
    """What EndTxn came to."""

    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Decision:
    """These transactions are the batch; they will be committed, whoever does it."""

    query: str
    batch_id: int
    transactions: tuple[Transaction, ...]

    def to_json(self) -> bytes:
        """The value of the decision's record; names share their beginning, so it is left out."""
        prefix = transaction_prefix(self.query)
        rows = [
            [_without_prefix(transaction.transactional_id, prefix), *transaction[1:]]
            for transaction in self.transactions
        ]
        document = {
            "version": DECISION_VERSION,
            "query": self.query,
            "batch": self.batch_id,
            "transactions": rows,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Decision":
        """Raises ValueError for what another version may have written."""
        document: dict[str, Any] = json.loads(data)
        if document.get("version") != DECISION_VERSION:
            raise ValueError(f"a commit record of version {document.get('version')} is not understood here")
        prefix = transaction_prefix(document["query"])
        transactions = tuple(
            Transaction(prefix + name, producer_id, epoch)
            for name, producer_id, epoch in document["transactions"]
        )
        return cls(document["query"], int(document["batch"]), transactions)


class CommitLog(NamedTuple):
    """The newest decision of a query, and the newest batch whose transactions are all ended."""

    decision: Decision | None
    done_batch_id: int = NOTHING_DONE

    @property
    def decided_batch_id(self) -> int:
        return NOTHING_DONE if self.decision is None else self.decision.batch_id

    @property
    def is_settled(self) -> bool:
        return self.decided_batch_id <= self.done_batch_id


# ---------------------------------------------------------------- what is asked of the cluster


@dataclass(frozen=True, slots=True)
class Claim:
    """InitProducerId of the driver id; answered with a `Driver`."""

    query: str


@dataclass(frozen=True, slots=True)
class ReadCommitLog:
    """Answered with the `CommitLog` of the query, as of now."""

    query: str


@dataclass(frozen=True, slots=True)
class StillOpen:
    """Answered with those of the transactions that are open under these very epochs, and will be for longer
    than the driver's own transaction can.
    """

    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write the record inside the driver's transaction. Answered with whether this driver may still do so."""

    driver: Driver
    decision: Decision


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """Commit the driver's transaction: from now on it is decided. Answered as `WriteDecision`."""

    driver: Driver


@dataclass(frozen=True, slots=True)
class DropDecision:
    """Abort the driver's transaction; answered with None, whatever came of it."""

    driver: Driver


@dataclass(frozen=True, slots=True)
class End:
    """EndTxn of each; answered with an `Outcome` for each."""

    transactions: tuple[Transaction, ...]
    committed: bool


@dataclass(frozen=True, slots=True)
class MarkDone:
    """Write that all transactions of the batch are ended; answered with None when it is durable."""

    query: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Answered with the open transactions whose name begins so."""

    prefix: str


Request = (
    Claim
    | ReadCommitLog
    | StillOpen
    | WriteDecision
    | CommitDecision
    | DropDecision
    | End
    | MarkDone
    | ListOpen
)
Steps = Generator[Request, Any, "Committed"]


class Committed(NamedTuple):
    """How a commit went well."""

    batch_id: int
    transactions: int
    was_decided_before: bool
    swept: int


class FencedDriver(Exception):
    """Another driver of the same query has taken over: this one must not go on."""


class BatchTooOld(Exception):
    """A transaction of the batch was ended before the batch was decided; nothing of it is visible."""


class LostTransactions(Exception):
    """A decided transaction was aborted by the cluster before it could be committed: records are missing."""

    def __init__(self, batch_id: int, transactions: Sequence[Transaction]) -> None:
        self.batch_id = batch_id
        self.transactions = tuple(transactions)
        names = ", ".join(transaction.transactional_id for transaction in self.transactions[:3])
        super().__init__(
            f"batch {batch_id} was decided, but {len(self.transactions)} of its transactions were aborted by"
            f" the cluster before they could be committed ({names}): their records are missing from the"
            " output. The driver was away for longer than transaction.timeout.ms; see docs/pipelines-sink.md"
        )


# ---------------------------------------------------------------- names


def check_query_name(query: str) -> None:
    """Raises ValueError for a name that begins like the transactions of another query."""
    if transaction_prefix("") in query:
        raise ValueError(f"{transaction_prefix('')!r} is between a query's name and the number of its batch")


def driver_transactional_id(query: str) -> str:
    """The id that the drivers of a query claim, one after the other."""
    return f"{query}{_SEPARATOR}driver"


def transaction_prefix(query: str) -> str:
    """How the names of all transactions of a query's tasks begin."""
    return f"{query}{_SEPARATOR}batch{_SEPARATOR}"


def transaction_name(query: str, batch_id: int, partition: int, attempt: str) -> str:
    """The transactional id of one attempt of one task; `attempt` makes it the only one of its name."""
    assert _SEPARATOR not in attempt
    return f"{transaction_prefix(query)}{batch_id}{_SEPARATOR}{partition}{_SEPARATOR}{attempt}"


def batch_of(query: str, transactional_id: str) -> int | None:
    """The batch that a transaction was opened for; None if it is none of this query's."""
    prefix = transaction_prefix(query)
    if not transactional_id.startswith(prefix):
        return None
    # Number, partition, attempt, and no more: the query `job.batch.3` begins like a transaction of `job`.
    parts = transactional_id[len(prefix) :].split(_SEPARATOR)
    return int(parts[0]) if len(parts) == 3 and parts[0].isdigit() else None


def _without_prefix(text: str, prefix: str) -> str:
    assert text.startswith(prefix), f"{text} is no transaction of {prefix}"
    return text[len(prefix) :]


# ---------------------------------------------------------------- the driver


def commit(query: str, batch_id: int, written: Iterable[Transaction]) -> Steps:
    """Make what the tasks of a batch wrote visible, once; raises FencedDriver, BatchTooOld, LostTransactions.

    After FencedDriver and BatchTooOld nothing of the batch is visible on this driver's account. Any other end
    (the driver dies, the cluster cannot be reached) leaves everything to the next `commit` of the query.
    """
    transactions = tuple(written)
    driver: Driver = yield Claim(query)
    log: CommitLog = yield ReadCommitLog(query)
    if log.decision is not None and not log.is_settled:
        yield from _end_decided(log.decision)
    if log.decided_batch_id >= batch_id:
        # A replay: what was decided then is in the output, and what this try wrote must not be.
        # Those of the decision itself are there when this very commit is tried again.
        assert log.decision is not None
        unwanted = tuple(one for one in transactions if one not in log.decision.transactions)
        if unwanted:
            yield End(unwanted, committed=False)
        swept = yield from _sweep(query, log.decided_batch_id)
        return Committed(batch_id, 0, was_decided_before=True, swept=swept)
    decision = Decision(query, batch_id, transactions)
    is_ours: bool = yield WriteDecision(driver, decision)
    if is_ours:
        # Within the driver's own, short transaction: were they open now but not when it is committed, then
        # that would have timed out as well.
        still_open: frozenset[Transaction] = frozenset((yield StillOpen(transactions)))
        gone = [transaction for transaction in transactions if transaction not in still_open]
        if gone:
            yield DropDecision(driver)
            yield End(tuple(still_open), committed=False)
            raise BatchTooOld(
                f"batch {batch_id}: {len(gone)} of {len(transactions)} transactions were ended before the"
                f" batch was decided, {gone[0].transactional_id} for one: another driver runs, or the batch"
                " takes too long for transaction.timeout.ms"
            )
        is_ours = yield CommitDecision(driver)
    if not is_ours:
        raise FencedDriver(
            f"batch {batch_id} is not committed: another driver of {query} took over, or this one stood still"
            " for too long. Only one may run; start it again"
        )
    yield from _end_decided(decision)
    swept = yield from _sweep(query, batch_id)
    return Committed(batch_id, len(transactions), was_decided_before=False, swept=swept)


def abandon(query: str, batch_id: int, written: Iterable[Transaction], *, was_committing: bool) -> Steps:
    """Give the batch up, or finish it if it was decided; raises LostTransactions.

    `was_committing`: there was a `commit` that failed; without one nothing can be decided.

    Only for a query that no other driver will ever commit: what is open under its name is aborted, reported
    or not, and another driver might be about to decide it.
    """
    transactions = tuple(written)
    log = CommitLog(None)
    if was_committing:
        yield Claim(query)
        log = yield ReadCommitLog(query)
    if log.decision is None:
        if transactions:
            yield End(transactions, committed=False)
    elif not log.is_settled:
        yield from _end_decided(log.decision)
    swept = yield from _sweep(query, batch_id)
    is_decided = log.decision is not None
    return Committed(batch_id, 0, was_decided_before=is_decided, swept=swept)


def _end_decided(decision: Decision) -> Generator[Request, Any, None]:
    if decision.transactions:
        outcomes: Sequence[Outcome] = yield End(decision.transactions, committed=True)
        lost = [
            transaction
            for transaction, outcome in zip(decision.transactions, outcomes, strict=True)
            if outcome is Outcome.LOST
        ]
        if lost:
            raise LostTransactions(decision.batch_id, lost)
    yield MarkDone(decision.query, decision.batch_id)


def _sweep(query: str, decided_batch_id: int) -> Generator[Request, Any, int]:
    """Abort what attempts left open that are not in the decision of their batch and never will be."""
    found: Sequence[Transaction] = yield ListOpen(transaction_prefix(query))
    rubbish = tuple(transaction for transaction in found if is_rubbish(query, decided_batch_id, transaction))
    if rubbish:
        yield End(rubbish, committed=False)
    return len(rubbish)


def is_rubbish(query: str, decided_batch_id: int, transaction: Transaction) -> bool:
    """Whether an open transaction can be in no decision; that of `decided_batch_id` is carried out."""
    opened_for = batch_of(query, transaction.transactional_id)
    return opened_for is not None and opened_for <= decided_batch_id

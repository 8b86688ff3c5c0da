"""How a query's output is committed exactly once: the protocol without any I/O (docs/adr/0012).

Every attempt of a task writes in a transaction of its own and leaves it open. The driver then runs `commit`,
a generator that yields what has to be asked of the cluster and is sent the answers:

    claim ──► read the commit log ──► settle an earlier decision ──► is this batch decided already?
      yes ──► abort what this try wrote ──► sweep
      no  ──► are the records of transactions that are open no more in the log? ──► decide
              ──► end those that are open ──► publish the others ──► mark done ──► sweep

A batch may take longer than a transaction may last. An attempt that writes for long aborts what it has
written, again and again (it is *held*), and the cluster aborts what others left open for too long. The
records stay in the log, where no reader sees them, and the decision says where. *To publish* is to write them
again, so many at a time, each time in a transaction of the driver's that also notes how far it came.

`abandon` is for a batch job whose name nobody else has, when its write or its commit has failed.

The sink carries the requests out with a client (`sink_commits`), the tests with a model of a cluster in which
drivers die, wake up late and overtake each other after every request.

What makes it safe:
- Who claims the query's driver id gets a new epoch of it, and nobody with an earlier one can decide any more.
- So what is read after the claim is all that will ever be decided by others, until the next claim.
- A batch is decided at most once, and its transactions are ended only on the word of the decision.
- A transaction that cannot be committed was aborted, and stays so: it is published, the others never are.
- Records and the note how far publishing came are one transaction of the newest claim: nothing is published
  twice, whoever goes on.
- Once a batch is decided, whatever was opened for it or an earlier one and is not in the decision is rubbish,
  for ever: anybody may abort it at any time, and `sweep` does. The name of a transaction tells its batch.
"""

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

COMMIT_LOG_TOPIC = "__tidelog_spark_commits"
#: without and with the records' places
_DECISION_VERSIONS = (1, 2)
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


class EndTxnOutcome(Enum):
    """What EndTxn came to."""

    ENDED = "ended"
    #: it was ended the other way before, and stays so
    LOST = "lost"
    #: the cluster does not know it any more, so nobody can say how it ended
    FORGOTTEN = "forgotten"


class Span(NamedTuple):
    """Offsets of a partition between which a batch has written."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Records:
    """Where the records of a batch are in the log, whatever became of their transactions."""

    spans: tuple[Span, ...]
    #: how many each attempt wrote, by its producer id, which nobody else has
    counts: Mapping[int, int]

    def count_of(self, transactions: Iterable[Transaction]) -> int:
        return sum(self.counts.get(transaction.producer_id, 0) for transaction in transactions)


class PublishPosition(NamedTuple):
    """How far publishing came."""

    #: the number of the span, and the next offset in it
    span: int
    offset: int
    #: how many records were published
    records: int
    is_end: bool = False


START = PublishPosition(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """These transactions are the batch; they will be committed or published, whoever does it."""

    query: str
    batch_id: int
    transactions: tuple[Transaction, ...]
    #: aborted by the attempts themselves: they can only be published
    held: tuple[Transaction, ...] = ()
    #: None from a version that could not publish
    records: Records | None = None

    def to_json(self) -> bytes:
        """The value of the decision's record; names share their beginning, so it is left out."""
        prefix = transaction_prefix(self.query)
        counts = {} if self.records is None else self.records.counts

        def row(transaction: Transaction) -> list[Any]:
            name, producer_id, epoch = transaction
            found = [_without_prefix(name, prefix), producer_id, epoch]
            return found if self.records is None else [*found, counts.get(producer_id, 0)]

        document: dict[str, Any] = {
            "version": 1 if self.records is None else 2,
            "query": self.query,
            "batch": self.batch_id,
            "transactions": list(map(row, self.transactions)),
        }
        if self.records is not None:
            document |= {"held": list(map(row, self.held)), "spans": self.records.spans}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Decision":
        """Raises ValueError for what another version may have written."""
        document: dict[str, Any] = json.loads(data)
        if document.get("version") not in _DECISION_VERSIONS:
            raise ValueError(f"a commit record of version {document.get('version')} is not understood here")
        prefix = transaction_prefix(document["query"])
        rows = {name: document.get(name, []) for name in ("transactions", "held")}
        transactions, held = (
            tuple(Transaction(prefix + row[0], row[1], row[2]) for row in some) for some in rows.values()
        )
        records = None
        if document["version"] > 1:
            counts = {row[1]: row[3] for some in rows.values() for row in some}
            records = Records(tuple(Span(*span) for span in document["spans"]), counts)
        return cls(document["query"], int(document["batch"]), transactions, held, records)


class CommitLog(NamedTuple):
    """The newest decision of a query, how far it was published, and the newest batch that is all visible."""

    decision: Decision | None
    done_batch_id: int = NOTHING_DONE
    #: of the decision's batch
    published: PublishPosition = START

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
    """Answered with those of the transactions that are open under these very epochs."""

    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True)
class WhatIsMissing:
    """Answered with words if some records of these transactions are not in the log, else with None."""

    transactions: tuple[Transaction, ...]
    records: Records | None


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
class PublishSome:
    """In a transaction of the driver's, write some records of these transactions again, and how far that is.

    Answered with that `PublishPosition`, or None if this driver may not do so any more.
    """

    driver: Driver
    decision: Decision
    transactions: tuple[Transaction, ...]
    position: PublishPosition


@dataclass(frozen=True, slots=True)
class CommitSome:
    """Commit that transaction. Answered with whether this driver may still do so."""

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
    | WhatIsMissing
    | WriteDecision
    | CommitDecision
    | PublishSome
    | CommitSome
    | End
    | MarkDone
    | ListOpen
)
Steps = Generator[Request, Any, "CommittedBatch"]


class CommittedBatch(NamedTuple):
    """How a commit went well."""

    batch_id: int
    transactions: int
    was_decided_before: bool
    swept: int
    #: records that were written again because their transactions could not last so long
    published: int = 0


class FencedDriver(Exception):
    """Another driver of the same query has taken over: this one must not go on.

    Or its own short transaction timed out; the next start finds out what came of it.
    """


class BatchTooOld(Exception):
    """Transactions were ended before the batch was decided, and the log does not have their records any more.

    Nothing of the batch is visible, and nothing of it is left open.
    """


class LostTransactions(Exception):
    """A decided transaction was aborted, and its records are not in the log any more: they are missing."""

    def __init__(self, batch_id: int, transactions: Sequence[Transaction]) -> None:
        self.batch_id = batch_id
        self.transactions = tuple(transactions)
        names = ", ".join(transaction.transactional_id for transaction in self.transactions[:3])
        super().__init__(
            f"batch {batch_id} was decided, but {len(self.transactions)} of its transactions were aborted by"
            f" the cluster before they could be committed ({names}), and their records are not all in the log"
            " any more: they are missing from the output. The driver was away for longer than the topic"
            " keeps what was aborted; see docs/pipelines-sink.md"
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


def commit(
    query: str,
    batch_id: int,
    written: Iterable[Transaction],
    held: Iterable[Transaction] = (),
    records: Records | None = None,
) -> Steps:
    """Make what the tasks of a batch wrote visible, once; raises FencedDriver, BatchTooOld, LostTransactions.

    `written` was open when its tasks reported, `held` was aborted by them; `records` says where all of it is.

    After BatchTooOld nothing of the batch is visible or open. After FencedDriver nothing more of it becomes
    visible on this driver's account. Any other end (the driver dies, the cluster cannot be reached) leaves
    everything to the next `commit` of the query.
    """
    decision = Decision(query, batch_id, tuple(written), tuple(held), records)
    driver: Driver = yield Claim(query)
    log: CommitLog = yield ReadCommitLog(query)
    yield from _settle(driver, log)
    if log.decided_batch_id >= batch_id:
        # A replay: what was decided then is in the output, and what this try wrote must not be.
        # Those of the decision itself are there when this very commit is tried again.
        assert log.decision is not None
        unwanted = tuple(one for one in decision.transactions if one not in log.decision.transactions)
        if unwanted:
            yield End(unwanted, committed=False)
        swept = yield from _sweep(query, log.decided_batch_id)
        return CommittedBatch(batch_id, 0, was_decided_before=True, swept=swept)
    yield from _look(decision)
    is_ours: bool = yield WriteDecision(driver, decision)
    if is_ours:
        is_ours = yield CommitDecision(driver)
    if not is_ours:
        raise _fenced(query, batch_id)
    published = yield from _settle(driver, CommitLog(decision))
    swept = yield from _sweep(query, batch_id)
    count = len(decision.transactions) + len(decision.held)
    return CommittedBatch(batch_id, count, was_decided_before=False, swept=swept, published=published)


def abandon(query: str, batch_id: int, written: Iterable[Transaction], *, was_committing: bool) -> Steps:
    """Give the batch up, or finish it if it was decided; raises LostTransactions, FencedDriver.

    `was_committing`: there was a `commit` that failed; without one nothing can be decided.

    Only for a query that no other driver will ever commit: what is open under its name is aborted, reported
    or not, and another driver might be about to decide it.
    """
    transactions = tuple(written)
    log = CommitLog(None)
    if was_committing:
        driver: Driver = yield Claim(query)
        log = yield ReadCommitLog(query)
        yield from _settle(driver, log)
    if log.decision is None and transactions:
        yield End(transactions, committed=False)
    swept = yield from _sweep(query, batch_id)
    is_decided = log.decision is not None
    return CommittedBatch(batch_id, 0, was_decided_before=is_decided, swept=swept)


def _look(decision: Decision) -> Generator[Request, Any, None]:
    """Decide only what can be made visible: all that is open no more must be in the log. Or give up whole."""
    still_open: Sequence[Transaction] = ()
    if decision.transactions:
        still_open = yield StillOpen(decision.transactions)
    gone = tuple(one for one in decision.transactions if one not in frozenset(still_open))
    if not gone and not decision.held:
        return
    missing: str | None = yield WhatIsMissing(gone + decision.held, decision.records)
    if missing is not None:
        yield End(decision.transactions, committed=False)
        raise BatchTooOld(f"batch {decision.batch_id} is given up, nothing of it is visible: {missing}")


def _fenced(query: str, batch_id: int) -> FencedDriver:
    return FencedDriver(
        f"batch {batch_id} is not committed: another driver of {query} took over, or this one stood still"
        " for too long. Only one may run; start it again"
    )


def _settle(driver: Driver, log: CommitLog) -> Generator[Request, Any, int]:
    """Make visible all that is decided; returns how many records had to be published."""
    decision = log.decision
    if decision is None or log.is_settled:
        return 0
    lost: list[Transaction] = []
    if decision.transactions:
        outcomes: Sequence[EndTxnOutcome] = yield End(decision.transactions, committed=True)
        ended = list(zip(decision.transactions, outcomes, strict=True))
        forgotten = [transaction for transaction, outcome in ended if outcome is EndTxnOutcome.FORGOTTEN]
        if forgotten:
            raise LostTransactions(decision.batch_id, forgotten)
        lost = [transaction for transaction, outcome in ended if outcome is EndTxnOutcome.LOST]
    unpublished = (*lost, *decision.held)
    if unpublished:
        yield from _publish(driver, decision, unpublished, log.published)
    yield MarkDone(decision.query, decision.batch_id)
    return 0 if decision.records is None else decision.records.count_of(unpublished)


def _publish(
    driver: Driver, decision: Decision, transactions: tuple[Transaction, ...], position: PublishPosition
) -> Generator[Request, Any, None]:
    """Write the records of aborted transactions again, from a position on. All others are ended by now."""
    if decision.records is None:
        raise LostTransactions(decision.batch_id, transactions)
    while not position.is_end:
        reached: PublishPosition | None = yield PublishSome(driver, decision, transactions, position)
        if reached is None:
            raise _fenced(decision.query, decision.batch_id)
        is_ours: bool = yield CommitSome(driver)
        if not is_ours:
            raise _fenced(decision.query, decision.batch_id)
        position = reached
    if position.records != decision.records.count_of(transactions):
        raise LostTransactions(decision.batch_id, transactions)


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

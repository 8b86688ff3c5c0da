"""A model of a cluster and of Spark's drivers and tasks around the real `commit_protocol`.

Everything that runs is an actor: a generator that does one thing to the cluster per step. A schedule says who
does the next step, who dies, when another driver starts. Between any two steps anything may come in.

Spark's part: the checkpoint names the next batch; a driver runs the batch's tasks, each as one attempt or
more, takes the first report of each, and commits. A driver whose commit fails dies, as a query does.

`JobWorld` is a batch job without a name of its own: one driver, whose requests may fail, having come to
pass or not, or coming to pass later. It does what `sink._commit_job` and `sink._abandon_job` do.
"""

import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tidelog.pipelines import commit_protocol

QUERY = "query"
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
Actor = Generator[None, None, None]


@dataclass
class ModelTransaction:
    producer_id: int
    epoch: int
    state: str
    batch_id: int
    partition: int
    written: bool = False


@dataclass
class ModelCluster:
    """What the protocol may rely on: transactions by id and epoch, fencing by epoch, a log that remembers."""

    protocol: ModuleType
    transactions: dict[str, ModelTransaction] = field(default_factory=dict)
    driver_epoch: int = 0
    pending_decision: Any = None
    decisions: list[Any] = field(default_factory=list)
    done_batch_id: int = -1
    producer_ids: Any = field(default_factory=lambda: itertools.count(1))

    def init_transaction(self, name: str, batch_id: int, partition: int) -> Any:
        """InitProducerId of a task: what was open under the name is aborted, the epoch goes up."""
        known = self.transactions.get(name)
        producer_id, epoch = (
            (next(self.producer_ids), 0) if known is None else (known.producer_id, known.epoch + 1)
        )
        self.transactions[name] = ModelTransaction(producer_id, epoch, OPEN, batch_id, partition)
        return self.protocol.Transaction(name, producer_id, epoch)

    def end(self, transaction: Any, committed: bool) -> Any:
        known = self.transactions[transaction.transactional_id]
        wanted = COMMITTED if committed else ABORTED
        if (known.producer_id, known.epoch) == (transaction.producer_id, transaction.producer_epoch):
            if known.state == OPEN:
                known.state = wanted
            if known.state == wanted:
                return self.protocol.Outcome.ENDED
        return self.protocol.Outcome.LOST

    def is_open(self, transaction: Any) -> bool:
        known = self.transactions[transaction.transactional_id]
        return known.state == OPEN and known.epoch == transaction.producer_epoch

    def execute(self, request: Any) -> Any:
        match type(request).__name__:
            case "Claim":
                self.driver_epoch += 1
                self.pending_decision = None
                return self.protocol.Driver("driver", 0, self.driver_epoch)
            case "ReadCommitLog":
                newest = self.decisions[-1] if self.decisions else None
                return self.protocol.CommitLog(newest, self.done_batch_id)
            case "StillOpen":
                return tuple(filter(self.is_open, request.transactions))
            case "WriteDecision":
                if request.driver.producer_epoch != self.driver_epoch:
                    return False
                self.pending_decision = request.decision
                return True
            case "CommitDecision":
                if request.driver.producer_epoch != self.driver_epoch or self.pending_decision is None:
                    return False
                # through its stored form, as a real one
                self.decisions.append(self.protocol.Decision.from_json(self.pending_decision.to_json()))
                self.pending_decision = None
                return True
            case "DropDecision":
                if request.driver.producer_epoch == self.driver_epoch:
                    self.pending_decision = None
                return None
            case "MarkDone":
                self.done_batch_id = request.batch_id
                return None
            case "ListOpen":
                return tuple(
                    self.protocol.Transaction(name, known.producer_id, known.epoch)
                    for name, known in self.transactions.items()
                    if known.state == OPEN and name.startswith(request.prefix)
                )
        raise AssertionError(f"no such request: {request}")

    def decided(self) -> set[str]:
        return {
            transaction.transactional_id
            for decision in self.decisions
            for transaction in decision.transactions
        }


class World:
    """Drivers, tasks and a cluster; `check` after every step."""

    def __init__(
        self,
        protocol: ModuleType = commit_protocol,
        batches: int = 2,
        partitions: int = 2,
        choose: random.Random | None = None,
    ) -> None:
        self.protocol = protocol
        self.cluster = ModelCluster(protocol)
        self.batches, self.partitions = batches, partitions
        self.choose = choose or random.Random(0)
        self.committed_batch_id = -1
        self.actors: dict[str, Actor] = {}
        self.names = itertools.count()
        self.lost: list[Exception] = []
        self.too_old: list[Exception] = []
        #: how attempts behave: chance of a second one, chance that one dies on the way
        self.extra_attempts, self.dying_attempts = 0.0, 0.0

    def start_driver(self) -> str:
        return self._start("driver", self._driver)

    def _start(self, kind: str, make: Callable[..., Actor], *arguments: Any) -> str:
        name = f"{kind}-{next(self.names)}"
        self.actors[name] = make(name, *arguments)
        return name

    def step(self, name: str) -> bool:
        """Let one actor do one thing; False when it has ended."""
        try:
            next(self.actors[name])
        except StopIteration:
            self.actors.pop(name, None)
            return False
        self.check()
        return True

    def crash(self, name: str) -> None:
        self.actors.pop(name).close()

    def time_out(self) -> bool:
        """The cluster aborts an open transaction that no decision names.

        The transaction in which a decision is written has the shorter time, and goes first.
        """
        decided = self.cluster.decided()
        undecided = [
            name
            for name, known in self.cluster.transactions.items()
            if known.state == OPEN and name not in decided
        ]
        if undecided:
            name = self.choose.choice(undecided)
            self.cluster.transactions[name].state = ABORTED
            self.cluster.pending_decision = None
        return bool(undecided)

    # Actors

    def _driver(self, name: str) -> Actor:
        while self.committed_batch_id + 1 < self.batches:
            batch_id = self.committed_batch_id + 1
            yield
            reports: dict[int, Any] = {}
            for partition in range(self.partitions):
                self._start("attempt", self._attempt, batch_id, partition, reports, False)
                if self.choose.random() < self.extra_attempts:
                    self._start("attempt", self._attempt, batch_id, partition, reports, False)
            yield from self._wait_for(batch_id, reports)
            try:
                yield from self._commit(batch_id, tuple(reports[p] for p in sorted(reports)))
            except self.protocol.FencedDriver:
                return
            except self.protocol.BatchTooOld as fault:
                self.too_old.append(fault)
                return
            except self.protocol.LostTransactions as fault:
                self.lost.append(fault)
                return
            yield
            self.committed_batch_id = max(self.committed_batch_id, batch_id)

    def _wait_for(self, batch_id: int, reports: dict[int, Any]) -> Actor:
        waits = 0
        while len(reports) < self.partitions:
            yield
            waits += 1
            if waits % 20 == 0:  # Spark starts another attempt of what has failed
                for partition in range(self.partitions):
                    if partition not in reports:
                        self._start("attempt", self._attempt, batch_id, partition, reports, True)

    def _attempt(
        self, name: str, batch_id: int, partition: int, reports: dict[int, Any], sure: bool
    ) -> Actor:
        dies = not sure and self.choose.random() < self.dying_attempts
        yield
        transaction = self.cluster.init_transaction(
            self.protocol.transaction_name(QUERY, batch_id, partition, name), batch_id, partition
        )
        yield
        if self.cluster.is_open(transaction):
            self.cluster.transactions[transaction.transactional_id].written = True
        yield
        if not dies and self.cluster.is_open(transaction):
            reports.setdefault(partition, transaction)

    def _commit(self, batch_id: int, transactions: tuple[Any, ...]) -> Actor:
        yield from self._carry_out(self.protocol.commit(QUERY, batch_id, transactions))

    def _carry_out(self, steps: Any) -> Actor:
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration:
                return
            if type(request).__name__ == "End":
                answer = []
                for transaction in request.transactions:  # each EndTxn is a request of its own
                    answer.append(self._end(transaction, request.committed))
                    yield
            else:
                answer = self._execute(request)
                yield

    def _end(self, transaction: Any, committed: bool) -> Any:
        return self.cluster.end(transaction, committed)

    def _execute(self, request: Any) -> Any:
        return self.cluster.execute(request)

    # What must hold

    def copies(self) -> dict[tuple[int, int], int]:
        counts: dict[tuple[int, int], int] = {}
        for known in self.cluster.transactions.values():
            if known.state == COMMITTED and known.written:
                place = (known.batch_id, known.partition)
                counts[place] = counts.get(place, 0) + 1
        return counts

    def check(self) -> None:
        twice = {place: count for place, count in self.copies().items() if count > 1}
        assert not twice, f"written twice: {twice}"
        batches = [decision.batch_id for decision in self.cluster.decisions]
        assert batches == sorted(set(batches)), f"decided twice or out of order: {batches}"
        for batch_id in range(self.committed_batch_id + 1):
            for partition in range(self.partitions):
                assert self.copies().get((batch_id, partition)), (
                    f"batch {batch_id} counts as committed, but partition {partition} is not visible"
                )

    def finish(self) -> None:
        """Everything that still runs ends, in turn; then drivers have the query for themselves, one by one.

        The last one gets a batch more: its sweep finds what came too late for all others.
        """
        for _ in range(20_000):
            if not self.actors:
                break
            for name in list(self.actors):
                if name in self.actors:
                    self.step(name)
        assert not self.actors, f"no end in sight: {list(self.actors)}"
        for more_batches in (0, 0, 1):
            self.batches += more_batches
            driver = self.start_driver()
            while driver in self.actors:
                for name in list(self.actors):
                    if name in self.actors:
                        self.step(name)
        assert self.committed_batch_id == self.batches - 1, "the query does not end"

    def check_end(self) -> None:
        assert not self.lost, self.lost
        self.check()
        expected = {(b, p): 1 for b in range(self.batches) for p in range(self.partitions)}
        assert self.copies() == expected, f"visible: {self.copies()}"


class ClusterAway(Exception):
    """No answer came; the request may have come to pass."""


class JobWorld(World):
    """One job under a name that nobody else has."""

    def __init__(
        self, protocol: ModuleType, choose: random.Random, *, failing_requests: float, failing_tasks: float
    ) -> None:
        super().__init__(protocol, batches=1, partitions=choose.randint(1, 3), choose=choose)
        self.failing_requests, self.failing_tasks = failing_requests, failing_tasks
        self.extra_attempts, self.dying_attempts = choose.choice([0, 0.5]), choose.choice([0, 0.3])
        self.may_be_decided = False
        #: when the last commit, or its abandoning, began
        self.open_before: set[str] = set()
        #: how it ended: "saved", "given up" (abandon came to its end), "unknown" (it did not)
        self.end: str | None = None

    def run(self, steps_max: int | None) -> None:
        """Everybody in turn, by chance; the driver is killed after so many steps of its own."""
        driver = self._start("driver", self._job)
        driver_steps = 0
        while driver in self.actors:
            name = self.choose.choice(list(self.actors))
            if name == driver and driver_steps == steps_max:
                self.crash(driver)
                break
            driver_steps += name == driver
            self.step(name)
        for name in list(self.actors):
            while name.startswith("late") and self.step(name):
                pass

    def _job(self, name: str) -> Actor:
        reports: dict[int, Any] = {}
        for partition in range(self.partitions):
            self._start("attempt", self._attempt, 0, partition, reports, False)
            if self.choose.random() < self.extra_attempts:
                self._start("attempt", self._attempt, 0, partition, reports, False)
        if self.choose.random() < self.failing_tasks:
            for _ in range(self.choose.randint(0, 10)):
                yield
            yield from self._abandon(reports, was_committing=len(reports) == self.partitions)
            return
        yield from self._wait_for(0, reports)
        try:
            yield from self._commit_job(tuple(reports[p] for p in sorted(reports)))
        except (ClusterAway, self.protocol.FencedDriver, self.protocol.BatchTooOld):
            yield from self._abandon(reports, was_committing=True)
        except self.protocol.LostTransactions as fault:
            self.lost.append(fault)
        else:
            self.end = "saved"

    def _commit_job(self, transactions: tuple[Any, ...]) -> Actor:
        while True:
            try:
                yield from self._commit(0, transactions)
                return
            except ClusterAway:
                if not self.may_be_decided or self.choose.random() < 0.3:  # the time is over
                    raise

    def _abandon(self, reports: dict[int, Any], *, was_committing: bool) -> Actor:
        written = tuple(reports.values())
        try:
            yield from self._carry_out(
                self.protocol.abandon(QUERY, 0, written, was_committing=was_committing)
            )
        except ClusterAway:
            self.end = "unknown"
        except self.protocol.LostTransactions as fault:
            self.lost.append(fault)
        else:
            self.end = "given up"

    def _carry_out(self, steps: Any) -> Actor:
        self.open_before = self._open()
        return super()._carry_out(steps)

    def _end(self, transaction: Any, committed: bool) -> Any:
        return self._ask(super()._end, transaction, committed)

    def _execute(self, request: Any) -> Any:
        is_deciding = type(request).__name__ == "CommitDecision"
        self.may_be_decided |= is_deciding
        answer = self._ask(super()._execute, request)
        self.may_be_decided &= not is_deciding or answer
        return answer

    def _ask(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        if self.choose.random() < self.failing_requests:
            fate = self.choose.choice(["never", "now", "late"])
            if fate == "now":
                ask(*arguments)
            elif fate == "late":
                self._start("late", self._late, ask, arguments)
            raise ClusterAway
        return ask(*arguments)

    def _late(self, name: str, ask: Callable[..., Any], arguments: tuple[Any, ...]) -> Actor:
        for _ in range(self.choose.randint(1, 10)):
            yield
        ask(*arguments)

    def _open(self) -> set[str]:
        return {name for name, known in self.cluster.transactions.items() if known.state == OPEN}

    def check_job(self, *, was_killed: bool) -> None:
        """All or nothing: unless the driver was killed, or could reach nobody, between decision and ends."""
        assert not self.lost, self.lost
        visible = len(self.copies())
        is_decided = bool(self.cluster.decisions)
        assert not visible or is_decided, "visible without a decision"
        if self.end == "saved":
            assert visible == self.partitions, "saved, but not visible"
        elif self.end == "given up":
            assert visible in (0, self.partitions), "a part of the job is visible"
        else:
            assert was_killed or self.end == "unknown", "the driver came to no end"
        if self.end in ("saved", "given up"):
            assert not is_decided or visible, "decided after it was given up"
            left = self.open_before & self._open()
            assert not left, f"left open: {left}"

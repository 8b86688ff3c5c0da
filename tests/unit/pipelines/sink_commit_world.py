"""A model of a cluster and of Spark's drivers and tasks around the real `commit_protocol`.

Everything that runs is an actor: a generator that does one thing to the cluster per step. A schedule says who
does the next step, who dies, when another driver starts. Between any two steps anything may come in.

Spark's part: the checkpoint names the next batch; a driver runs the batch's tasks, each as one attempt or
more, takes the first report of each, and commits. A driver whose commit fails dies, as a query does.

Time may run out for any open transaction at any moment, decided or not; attempts that write for long abort
what they wrote and report it as held. What was aborted stays in the log until it is cleaned.

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
    #: how often its record was written again for readers to see
    published: int = 0
    #: a driver has aborted it
    unwanted: bool = False
    #: the log does not have the aborted record any more
    cleaned: bool = False

    @property
    def visible(self) -> int:
        return self.published + (self.written and self.state == COMMITTED)


@dataclass
class ModelCluster:
    """What the protocol may rely on: transactions by id and epoch, fencing by epoch, a log that remembers."""

    protocol: ModuleType
    transactions: dict[str, ModelTransaction] = field(default_factory=dict)
    driver_epoch: int = 0
    pending_decision: Any = None
    #: what is being published, and how far that is
    pending_piece: tuple[list[str], Any] | None = None
    #: of the newest decision
    position: Any = None
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
                known.unwanted = not committed
            if known.state == wanted:
                return self.protocol.EndTxnOutcome.ENDED
        return self.protocol.EndTxnOutcome.LOST

    def is_open(self, transaction: Any) -> bool:
        known = self.transactions[transaction.transactional_id]
        return known.state == OPEN and known.epoch == transaction.producer_epoch

    def execute(self, request: Any) -> Any:
        match type(request).__name__:
            case "Claim":
                self.driver_epoch += 1
                self.pending_decision = self.pending_piece = None
                return self.protocol.Driver("driver", 0, self.driver_epoch)
            case "ReadCommitLog":
                newest = self.decisions[-1] if self.decisions else None
                position = self.position or self.protocol.START
                return self.protocol.CommitLog(newest, self.done_batch_id, position)
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
                self.pending_decision = self.position = None
                return True
            case "WhatIsMissing":
                found = [self.transactions[one.transactional_id] for one in request.transactions]
                return "it was cleaned away" if any(one.cleaned for one in found) else None
            case "PublishSome":
                return self._publish_some(request)
            case "CommitSome":
                if request.driver.producer_epoch != self.driver_epoch or self.pending_piece is None:
                    return False
                names, self.position = self.pending_piece
                for name in names:
                    self.transactions[name].published += 1
                self.pending_piece = None
                return True
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

    def _publish_some(self, request: Any) -> Any:
        """One transaction's record at a time; `span` counts them."""
        if request.driver.producer_epoch != self.driver_epoch:
            return None
        names = sorted(one.transactional_id for one in request.decision.transactions + request.decision.held)
        number = request.position.span
        wanted = {one.transactional_id for one in request.transactions}
        known = self.transactions[names[number]]
        piece = [names[number]] if names[number] in wanted and known.written and not known.cleaned else []
        position = self.protocol.PublishPosition(
            number + 1, 0, request.position.records + len(piece), number + 1 == len(names)
        )
        self.pending_piece = (piece, position)
        return position

    def decided(self) -> set[str]:
        return {
            transaction.transactional_id
            for decision in self.decisions
            for transaction in decision.transactions + decision.held
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
        #: how attempts behave: chance of a second one, that one dies on the way, that one takes long
        self.extra_attempts, self.dying_attempts, self.long_attempts = 0.0, 0.0, 0.0

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
        """The cluster aborts an open transaction, of a task or of the driver."""
        still_open = [name for name, known in self.cluster.transactions.items() if known.state == OPEN]
        if still_open:
            self.cluster.transactions[self.choose.choice(still_open)].state = ABORTED
        elif self.cluster.pending_decision is None and self.cluster.pending_piece is None:
            return False
        if not still_open or self.choose.random() < 0.5:
            self.cluster.pending_decision = self.cluster.pending_piece = None
        return True

    def clean(self) -> bool:
        """The log loses the record of an aborted transaction."""
        aborted = [
            known
            for known in self.cluster.transactions.values()
            if known.state == ABORTED and known.written and not known.cleaned
        ]
        if aborted:
            self.choose.choice(aborted).cleaned = True
        return bool(aborted)

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
                yield from self._commit(batch_id, reports)
            except self.protocol.FencedDriver:
                return
            except self.protocol.BatchTooOld as fault:
                self.too_old.append(fault)
                left = [one for one, _ in reports.values() if self.cluster.is_open(one)]
                assert not left, f"given up, and left open: {left}"
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
        if dies or not self.cluster.is_open(transaction):
            return
        is_held = self.choose.random() < self.long_attempts
        if is_held:
            self.cluster.transactions[transaction.transactional_id].state = ABORTED
            yield
        reports.setdefault(partition, (transaction, is_held))

    def _commit(self, batch_id: int, reports: dict[int, Any]) -> Actor:
        written, held = (
            [transaction for _, (transaction, is_held) in sorted(reports.items()) if is_held == wanted]
            for wanted in (False, True)
        )
        counts = {one.producer_id: 1 for one in (*written, *held)}
        records = self.protocol.Records((), counts)
        yield from self._carry_out(self.protocol.commit(QUERY, batch_id, written, held, records))

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
            if known.visible:
                place = (known.batch_id, known.partition)
                counts[place] = counts.get(place, 0) + known.visible
        return counts

    def check(self) -> None:
        twice = {place: count for place, count in self.copies().items() if count > 1}
        assert not twice, f"written twice: {twice}"
        for name in self.cluster.decided():
            assert not self.cluster.transactions[name].unwanted, f"a driver aborted what is decided: {name}"
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
            self.long_attempts = 0.0
            driver = self.start_driver()
            while driver in self.actors:
                for name in list(self.actors):
                    if name in self.actors:
                        self.step(name)
        assert self.lost or self.committed_batch_id == self.batches - 1, "the query does not end"

    def check_end(self) -> None:
        self.check()
        if self.lost and any(known.cleaned for known in self.cluster.transactions.values()):
            return
        assert not self.lost, self.lost
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
        self.long_attempts = choose.choice([0, 0, 0.5])
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
            yield from self._commit_job(reports)
        except (ClusterAway, self.protocol.FencedDriver, self.protocol.BatchTooOld):
            yield from self._abandon(reports, was_committing=True)
        except self.protocol.LostTransactions as fault:
            self.lost.append(fault)
        else:
            self.end = "saved"

    def _commit_job(self, reports: dict[int, Any]) -> Actor:
        while True:
            try:
                yield from self._commit(0, reports)
                return
            except (ClusterAway, self.protocol.FencedDriver):
                # Nobody but ourselves can fence us: an earlier claim that arrived late, or our own time.
                if not self.may_be_decided or self.choose.random() < 0.3:  # the time is over
                    raise

    def _abandon(self, reports: dict[int, Any], *, was_committing: bool) -> Actor:
        written = tuple(transaction for transaction, _ in reports.values())
        try:
            yield from self._carry_out(
                self.protocol.abandon(QUERY, 0, written, was_committing=was_committing)
            )
        except (ClusterAway, self.protocol.FencedDriver):
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

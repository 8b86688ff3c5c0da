"""fsync off the event loop, at most one flush per partition at a time.

Requests that come while a flush runs share the next one, so a busy partition with `flush.messages=1` pays one
fsync for many acknowledgements. Whoever waits for a partition looks again when a flush of it has ended; when
one has failed, the listeners hear of it first, then those who wait for the disk.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable
from time import perf_counter_ns

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory
from tidelog.storage.flush_plan import FlushPlan, SyncFailed

log = logging.getLogger(__name__)

FailureListener = Callable[[Partition, OSError], None]


class FlushWaiter(DelayedOperation):
    """Somebody who waits for partitions to be on the disk."""

    __slots__ = ()

    @abstractmethod
    def flush_failed(self, partition: Partition) -> None:
        """A flush of a partition that it watches has failed."""


class Flusher:
    """Runs flush plans of partitions in worker threads."""

    def __init__(self, background: Background, purgatory: Purgatory, metrics: Metrics) -> None:
        self._background = background
        self._purgatory = purgatory
        self._metrics = metrics
        self._listeners: list[FailureListener] = []
        self._running: set[Partition] = set()
        self._again: set[Partition] = set()

    def listen(self, listener: FailureListener) -> None:
        """Call `listener` with every flush that fails; `Partition.flush_fault` is set if a sync did."""
        self._listeners.append(listener)

    def is_flushing(self, partition: Partition) -> bool:
        """Whether a flush of the partition is under way."""
        return partition in self._running

    def request(self, partition: Partition) -> None:
        """Make everything the partition has appended so far durable."""
        if partition in self._running:
            self._again.add(partition)
            return
        if partition.flush_fault is not None:
            self._tell_of(partition, partition.flush_fault)
            return
        try:
            plan = partition.log.flush_plan()
        except OSError as fault:
            log.error("%s cannot be flushed now: %s", partition, fault)
            self._tell_of(partition, fault)
            return
        partition.flush_started()
        if plan is None:
            self._purgatory.wake(partition)
        else:
            self._run(partition, plan)

    def request_closed(self, partition: Partition) -> None:
        """Make the closed segments durable, so that recovery need not read them; the active one waits."""
        if partition in self._running or partition.flush_fault is not None:
            return
        try:
            plan = partition.log.flush_plan(closed_only=True)
        except OSError as fault:
            log.warning("the closed segments of %s cannot be flushed now: %s", partition, fault)
            return
        if plan is not None:
            self._run(partition, plan)

    def _run(self, partition: Partition, plan: FlushPlan) -> None:
        self._running.add(partition)
        began_ns = perf_counter_ns()

        def finished(result: BaseException | None) -> None:
            self._metrics.flushes.observe(perf_counter_ns() - began_ns)
            self._finish(partition, plan, result)

        self._background.run(plan.run, finished)

    def _finish(self, partition: Partition, plan: FlushPlan, result: BaseException | None) -> None:
        self._running.discard(partition)
        if result is None:
            partition.log.flushed(plan)
            self._purgatory.wake(partition)
        else:
            self._failed(partition, result)
        if partition in self._again:
            self._again.discard(partition)
            self.request(partition)

    def _failed(self, partition: Partition, fault: BaseException) -> None:
        self._metrics.flush_failures += 1
        if isinstance(fault, SyncFailed):
            log.error("%s takes no more records until a restart: %s", partition, fault)
            partition.flush_fault = fault
        elif isinstance(fault, OSError):
            log.error("flushing %s failed: %s", partition, fault)
        else:
            # A bug of ours; whoever waits for the flush must hear of it all the same.
            log.error("flushing %s failed", partition, exc_info=fault)
            fault = OSError(f"the flush failed: {fault!r}")
        self._tell_of(partition, fault)

    def _tell_of(self, partition: Partition, fault: OSError) -> None:
        for listener in self._listeners:
            listener(partition, fault)
        for waiter in [each for each in partition.waiters if isinstance(each, FlushWaiter)]:
            waiter.flush_failed(partition)

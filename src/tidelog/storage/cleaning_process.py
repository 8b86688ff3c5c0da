"""Compaction in a process of its own.

A round of cleaning computes for seconds. In a thread of the broker it would take turns with the event loop at
every system call of the loop, each turn of theirs up to milliseconds long. So rounds run in a child process,
started by the first round and ended when it has been idle for a while. Plan and result travel as plain
values over pipes; the segments are files that both can open.

The child ends when the broker does, however that ends: it holds the read end of a pipe that nobody writes to,
and leaves when it is closed.
"""

import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.storage.cleaner import (
    CleaningPlan,
    CleaningResult,
    CleaningStatistics,
    CleaningStopped,
    Look,
    Replacement,
)
from tidelog.storage.disk import Disk, OsDisk
from tidelog.storage.expiry import ExpiryPlan
from tidelog.storage.leader_epochs import LEADER_EPOCH_CHECKPOINT, LeaderEpochs
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.producer_state import LastRecord
from tidelog.storage.segment import CLEANED, SWAP, Segment
from tidelog.storage.transaction_index import AbortedTransaction

IDLE_SECONDS_MAX = 60.0
STOP_CHECK_MS = 100
_LENGTH = struct.Struct(">Q")


class CleanerUnavailable(OSError):
    """The process that compacts could not be started or talked to; no log is to blame."""


class SegmentFacts(NamedTuple):
    """A segment as a plain value."""

    base_offset: int
    created_ms: int
    last_appended_ms: int

    @classmethod
    def of(cls, segment: Segment) -> "SegmentFacts":
        return cls(segment.base_offset, segment.created_ms, segment.last_appended_ms)

    def load(
        self, disk: Disk, open_files: OpenFiles, directory: str, config: LogConfig, suffix: str = ""
    ) -> Segment:
        segment = Segment.load(
            disk, open_files, directory, self.base_offset, config, self.created_ms, suffix=suffix
        )
        segment.last_appended_ms = self.last_appended_ms
        return segment


class Job(NamedTuple):
    """A cleaning plan as a plain value."""

    topic_partition: TopicPartition
    directory: str
    config: LogConfig
    segments: tuple[SegmentFacts, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    aborted_transactions: tuple[AbortedTransaction, ...]
    last_records: dict[int, LastRecord]
    now_ms: int
    dedupe_buffer_bytes: int
    #: of a round that removes expired records; None for compaction
    due: frozenset[int] | None

    def plan(self, disk: Disk, open_files: OpenFiles) -> CleaningPlan:
        """The plan again, over the same files."""
        kind = CleaningPlan if self.due is None else partial(ExpiryPlan, due=self.due)
        return kind(
            topic_partition=self.topic_partition,
            directory=self.directory,
            config=self.config,
            segments=tuple(
                facts.load(disk, open_files, self.directory, self.config) for facts in self.segments
            ),
            first_dirty_offset=self.first_dirty_offset,
            first_uncleanable_offset=self.first_uncleanable_offset,
            clean_bytes=self.clean_bytes,
            dirty_bytes=self.dirty_bytes,
            overdue=self.overdue,
            aborted_transactions=self.aborted_transactions,
            last_records=self.last_records,
            leader_epochs=LeaderEpochs(disk, f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"),
            now_ms=self.now_ms,
        )


class CleaningOutcome(NamedTuple):
    """What a round gave: for every new segment the base offsets of those it replaces; or what went wrong."""

    replacements: tuple[tuple[tuple[int, ...], SegmentFacts], ...] = ()
    first_dirty_offset: int = -1
    statistics: CleaningStatistics | None = None
    looks: tuple[Look, ...] = ()
    fault: BaseException | None = None


def job_of(plan: CleaningPlan, dedupe_buffer_bytes: int) -> Job:
    """A plan as a plain value."""
    return Job(
        plan.topic_partition,
        plan.directory,
        plan.config,
        tuple(SegmentFacts.of(segment) for segment in plan.segments),
        plan.first_dirty_offset,
        plan.first_uncleanable_offset,
        plan.clean_bytes,
        plan.dirty_bytes,
        plan.overdue,
        plan.aborted_transactions,
        plan.last_records,
        plan.now_ms,
        dedupe_buffer_bytes,
        plan.due if isinstance(plan, ExpiryPlan) else None,
    )


class CleaningProcess:
    """Runs rounds in a child process, one at a time; called from worker threads."""

    def __init__(self, disk: Disk, open_files: OpenFiles) -> None:
        self._disk = disk
        self._open_files = open_files
        self._child: subprocess.Popen[bytes] | None = None
        self._life: int | None = None
        self._idle_timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def run(
        self, plan: CleaningPlan, *, dedupe_buffer_bytes: int, should_stop: Callable[[], bool]
    ) -> CleaningResult:
        """Like `CleaningPlan.run`, elsewhere; the same exceptions, and CleanerUnavailable."""
        plan.leader_epochs.flush()
        with self._lock:
            try:
                child = self._start()
            except OSError as fault:
                raise CleanerUnavailable(f"the compaction process could not be started: {fault}") from fault
            answered = False
            try:
                assert child.stdin is not None and child.stdout is not None
                _send(child.stdin, job_of(plan, dedupe_buffer_bytes))
                outcome = self._wait(child.stdout, plan, should_stop)
                answered = True
            except EOFError as fault:
                raise OSError("the compaction process ended before its work was done") from fault
            finally:
                if not answered:
                    # Whatever it was: the child is not where we think it is, and its files are half-made.
                    self._end()
                    self._remove_leftovers(plan.directory)
            self._rest()
        if outcome.fault is not None:
            raise outcome.fault
        return self._result(plan, outcome)

    @staticmethod
    def _wait(pipe: "BinaryIO | Any", plan: CleaningPlan, should_stop: Callable[[], bool]) -> CleaningOutcome:
        """Wait for the outcome, and look now and then whether anybody still wants it."""
        # Not select(): it has no place for descriptors of 1024 and more.
        ready = select.poll()
        ready.register(pipe, select.POLLIN)
        while not ready.poll(STOP_CHECK_MS):
            if should_stop():
                raise CleaningStopped(f"{plan.topic_partition}: compaction was called off")
        outcome: CleaningOutcome = _receive(pipe)
        if should_stop():
            raise CleaningStopped(f"{plan.topic_partition}: compaction was called off")
        return outcome

    def close(self) -> None:
        """End the child process."""
        with self._lock:
            self._end()

    def _result(self, plan: CleaningPlan, outcome: CleaningOutcome) -> CleaningResult:
        by_base_offset = {segment.base_offset: segment for segment in plan.segments}
        replacements = tuple(
            Replacement(
                tuple(by_base_offset[base_offset] for base_offset in old),
                new.load(self._disk, self._open_files, plan.directory, plan.config, SWAP),
            )
            for old, new in outcome.replacements
        )
        assert outcome.statistics is not None
        return CleaningResult(
            plan, replacements, outcome.first_dirty_offset, outcome.statistics, outcome.looks
        )

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._child is None or self._child.poll() is not None:
            self._end()
            life_end, self._life = os.pipe()
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from tidelog.storage.cleaning_process import main; main({life_end})"
            )
            self._child = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(life_end,),
                # Ctrl-C in a terminal is for the broker; the pipe tells us that it is gone.
                start_new_session=True,
            )
            os.close(life_end)
        return self._child

    def _rest(self) -> None:
        self._idle_timer = threading.Timer(IDLE_SECONDS_MAX, self.close)
        self._idle_timer.daemon = True
        self._idle_timer.start()

    def _end(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._life is not None:
            os.close(self._life)
            self._life = None

    def _remove_leftovers(self, directory: str) -> None:
        """Remove what a round that was killed left behind; nothing else writes files of these kinds."""
        try:
            names = self._disk.list(directory)
        except FileNotFoundError:
            return  # the topic was deleted meanwhile
        for name in names:
            if name.endswith((CLEANED, SWAP)):
                self._disk.remove(f"{directory}/{name}")


# -- the child's side


def main(life_end: int) -> None:
    """Serve rounds until the broker is gone."""
    threading.Thread(target=_leave_with_the_broker, args=(life_end,), daemon=True).start()
    disk = OsDisk()
    while True:
        try:
            job: Job = _receive(sys.stdin.buffer)
        except EOFError:
            return
        # Files are opened anew for every job: since the last one others may have got their names.
        outcome = clean(job, disk, OpenFiles(disk))
        try:
            _send(sys.stdout.buffer, outcome)
        except BrokenPipeError:
            os._exit(0)  # the broker is gone, and nobody waits for the result


def clean(job: Job, disk: Disk, open_files: OpenFiles) -> CleaningOutcome:
    """Carry a job out."""
    try:
        result = job.plan(disk, open_files).run(disk, open_files, dedupe_buffer_bytes=job.dedupe_buffer_bytes)
    except (OSError, CorruptRecord) as fault:
        return CleaningOutcome(fault=fault)
    except Exception as fault:
        # A bug of ours, whose traceback would be lost; this log cannot be compacted, the next one may be.
        traceback.print_exc()
        return CleaningOutcome(fault=OSError(f"compaction went wrong: {fault!r}"))
    replacements = []
    for replacement in result.replacements:
        replacements.append(
            (tuple(old.base_offset for old in replacement.old), SegmentFacts.of(replacement.new))
        )
        replacement.new.let_go()
    return CleaningOutcome(tuple(replacements), result.first_dirty_offset, result.statistics, result.looks)


def _leave_with_the_broker(life_end: int) -> None:
    os.read(life_end, 1)
    os._exit(0)


def _send(pipe: "BinaryIO | Any", value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: "BinaryIO | Any") -> Any:
    head = _read_exactly(pipe, _LENGTH.size)
    return pickle.loads(_read_exactly(pipe, _LENGTH.unpack(head)[0]))


def _read_exactly(pipe: "BinaryIO | Any", size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = pipe.read(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data

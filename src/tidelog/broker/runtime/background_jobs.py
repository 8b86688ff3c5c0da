"""What a broker does again and again without being asked, and how each of these jobs fares.

A job that fails is never silent and never over. It is logged, counted (`tidelog_background_*`), told as an
event, shown by /healthz, /readyz and `tidelog doctor`, and tried again: after a second, then after twice as
long each time, but never later than it would have run anyway. One log that cannot be looked after does not
keep a job from the others: the job says which one failed and goes on.

`every` runs a job by itself. Jobs whose outcome is known later, or that have a rhythm of their own
(compaction), tell `ran` and `failed`.
"""

import logging
from collections.abc import Callable, Iterator

from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.timers import Timers
from tidelog.model.events import BACKGROUND_JOB_FAILED, BACKGROUND_JOB_RECOVERED
from tidelog.records.corrupt_record import CorruptRecord

log = logging.getLogger(__name__)

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 60_000
FAULT_CHARACTERS_MAX = 500
#: the environment failing; everything else is a bug of ours, and its traceback belongs in the log
ENVIRONMENT = (OSError, CorruptRecord)


class BackgroundJob:
    """How one job fares."""

    __slots__ = ("failed_in_a_row", "failures", "fault", "last_ran_ms", "name", "runs", "schedule")

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.runs = 0
        self.failures = 0
        #: failures since it last went well
        self.failed_in_a_row = 0
        #: when it last went well, by the monotonic clock; before the first time, when the job came to be
        self.last_ran_ms = now_ms
        #: what went wrong last, while it is failing
        self.fault = ""
        self.schedule: Callable[[int], None] | None = None

    @property
    def failing(self) -> bool:
        return self.failed_in_a_row > 0

    @property
    def retry_ms(self) -> int:
        """How long to wait before a job that fails is tried again."""
        return int(min(RETRY_MS_MAX, RETRY_MS_MIN << min(max(0, self.failed_in_a_row - 1), 16)))

    def __repr__(self) -> str:
        state = f"failed_in_a_row={self.failed_in_a_row} {self.fault!r}" if self.failing else "well"
        return f"<BackgroundJob {self.name} runs={self.runs} failures={self.failures} {state}>"


class BackgroundJobs:
    """The jobs of one broker."""

    def __init__(
        self,
        timers: Timers,
        events: Events,
        on_fault: Callable[[BaseException, object], None],
        *,
        raise_unexpected: bool = False,
    ) -> None:
        """`on_fault` hears of every failure, with the log that it is about: the disk may have failed.

        `raise_unexpected`: a bug surfaces where it is, as simulations want it.
        """
        self._timers = timers
        self._events = events
        self._jobs: dict[str, BackgroundJob] = {}
        self._stopped = False
        #: errors in code of ours that no job was prepared for, since the start
        self.unexpected_count = 0
        self._on_fault = on_fault
        self.raise_unexpected = raise_unexpected

    def __iter__(self) -> Iterator[BackgroundJob]:
        return iter(sorted(self._jobs.values(), key=lambda job: job.name))

    def __repr__(self) -> str:
        return f"<BackgroundJobs {len(self._jobs)} failing={[job.name for job in self.failing()]}>"

    def job(self, name: str) -> BackgroundJob:
        found = self._jobs.get(name)
        if found is None:
            found = self._jobs[name] = BackgroundJob(name, self._timers.monotonic_ms())
        return found

    def failing(self) -> list[BackgroundJob]:
        """The jobs that did not go well when they were last tried, by name."""
        return sorted((job for job in self._jobs.values() if job.failing), key=lambda job: job.name)

    def seconds_since_last_run(self, job: BackgroundJob) -> float:
        """For how long the job has not gone well."""
        return max(0, self._timers.monotonic_ms() - job.last_ran_ms) / 1_000

    def every(
        self,
        name: str,
        interval_ms: Callable[[], int],
        work: Callable[[], None],
        *,
        tells_later: bool = False,
    ) -> None:
        """Do `work` again and again until `stop`; with `tells_later` it calls `ran` or `failed` itself."""
        job = self.job(name)

        def run() -> None:
            if self._stopped:
                return
            failures = job.failures
            # Before the work: whatever happens in it, the next time is settled.
            arm(interval_ms())
            try:
                work()
            except Exception as fault:
                self.failed(name, fault)
            else:
                if not tells_later and job.failures == failures:
                    self.ran(name)

        def arm(delay_ms: int) -> None:
            self._timers.set_after(("background job", name), delay_ms, run)

        job.schedule = lambda delay_ms: arm(min(delay_ms, interval_ms()))
        arm(interval_ms())

    def cancel(self, name: str) -> None:
        """There is nothing to do any more for a job that `every` began; it may be begun again."""
        self._timers.cancel(("background job", name))
        self._jobs.pop(name, None)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def ran(self, name: str) -> None:
        """A job went well."""
        job = self.job(name)
        job.runs += 1
        job.last_ran_ms = self._timers.monotonic_ms()
        if job.failed_in_a_row:
            log.warning("%s works again after %d failures", name, job.failed_in_a_row)
            self._events.emit(BACKGROUND_JOB_RECOVERED, {"job": name, "failures": job.failed_in_a_row})
            job.failed_in_a_row = 0
            job.fault = ""

    def failed(self, name: str, fault: BaseException, about: object = None) -> None:
        """A job did not go well, as a whole or for one log (`about`); it is tried again.

        A log that failed is tried with the next run of the job: the others are not to wait for it.
        """
        bug = not isinstance(fault, ENVIRONMENT)
        if bug and self.raise_unexpected:
            raise fault
        job = self.job(name)
        job.failures += 1
        job.failed_in_a_row += 1
        what = str(fault) or type(fault).__name__
        job.fault = (what if about is None else f"{about}: {what}")[:FAULT_CHARACTERS_MAX]
        # The first failures in a row are told one by one, later ones ever more rarely.
        if job.failed_in_a_row & (job.failed_in_a_row - 1) == 0:
            times = f" ({job.failed_in_a_row} times in a row)" if job.failed_in_a_row > 1 else ""
            log.error(
                "%s failed%s and is tried again: %s", name, times, job.fault, exc_info=fault if bug else None
            )
        if job.failed_in_a_row == 1:
            self._events.emit(BACKGROUND_JOB_FAILED, {"job": name}, cause=job.fault)
        self._on_fault(fault, about)
        if about is None and job.schedule is not None and not self._stopped:
            job.schedule(job.retry_ms)

    def unexpected(self, fault: BaseException | None) -> None:
        """The event loop caught an error that nobody was prepared for; it logs it."""
        self.unexpected_count += 1
        self._events.emit(
            BACKGROUND_JOB_FAILED, {"job": "event loop"}, cause=repr(fault)[:FAULT_CHARACTERS_MAX]
        )

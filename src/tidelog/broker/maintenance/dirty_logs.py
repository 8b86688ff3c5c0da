"""Which log to clean next: the dirtiest of those that can be, or one that may have expired records.

A log whose cleaning failed (a damaged batch, say) is uncleanable: it is left alone for a while, longer each
time, and the others are cleaned; one whose new segments could not get their names, until a restart.
"""

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

from tidelog.broker.maintenance.cleaner_checkpoints import CleanerCheckpoints
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.background_jobs import ENVIRONMENT, BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.model.events import COMPACTION_FAILED
from tidelog.model.log_config import LogConfig
from tidelog.model.ports import Clock
from tidelog.storage.cleaner import CleaningPlan, CleaningResult, plan_cleaning
from tidelog.storage.expiry import ExpiryPlan, expires, plan_expiry

log = logging.getLogger(__name__)

#: an uncleanable log is tried again after `log.cleaner.backoff.ms`, then twice as long, and so on up to this
UNCLEANABLE_MS_MAX = 3_600_000


class Uncleanable(NamedTuple):
    """A log that could not be compacted."""

    failures: int
    #: by the monotonic clock; infinity for not before a restart
    retry_at_ms: float
    reason: str


#: the settings that say what has expired, and how much of that is worth a round
_Token = tuple[int, float]


def _token(config: LogConfig) -> _Token:
    return config.tidelog_ttl_ms, config.min_cleanable_dirty_ratio


class DirtyLogs:
    """The logs of one broker that compaction is for, and those whose records expire."""

    def __init__(
        self,
        replicas: Replicas,
        checkpoints: CleanerCheckpoints,
        settings: LiveSettings,
        clock: Clock,
        jobs: BackgroundJobs,
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._checkpoints = checkpoints
        self._settings = settings
        self._clock = clock
        self._jobs = jobs
        self._metrics = metrics
        self._uncleanable: dict[Partition, Uncleanable] = {}
        #: when to look at which segment for expired records, with the settings that it was found with
        self._looks: dict[Partition, dict[_Token, dict[tuple[int, int], int]]] = {}

    def __repr__(self) -> str:
        return f"<DirtyLogs uncleanable={len(self._uncleanable)}>"

    @property
    def uncleanable(self) -> Mapping[Partition, Uncleanable]:
        """The logs whose last compaction failed (Kafka's uncleanable partitions)."""
        return self._uncleanable

    def dirtiest(self) -> tuple[Partition, CleaningPlan] | None:
        """The log that needs it most, and what is to be done with it."""
        now_ms = self._clock.now_ms()
        monotonic_ms = self._clock.monotonic_ms()
        best: tuple[Partition, CleaningPlan] | None = None
        most_urgent: tuple[bool, bool, float] | None = None
        for partition in list(self._replicas):
            if not (partition.config.compacted or expires(partition.config)):
                continue
            uncleanable = self._uncleanable.get(partition)
            if uncleanable is not None and monotonic_ms < uncleanable.retry_at_ms:
                continue
            try:
                plan = self._plan(partition, now_ms)
            except Exception as fault:
                self.leave_alone(partition, fault)
                continue
            if plan is None:
                continue
            # One that failed before comes last: it must not take the turn of those that would go well.
            urgency = (uncleanable is None, plan.overdue, plan.dirty_ratio)
            if most_urgent is None or urgency > most_urgent:
                best, most_urgent = (partition, plan), urgency
        return best

    def _plan(self, partition: Partition, now_ms: int) -> CleaningPlan | None:
        log_, config = partition.log, partition.config
        end_offset = partition.last_stable_offset
        if not config.compacted:
            looks = self._looks.get(partition, {}).get(_token(config), {})
            return plan_expiry(log_, looks=looks, last_stable_offset=end_offset, now_ms=now_ms)
        return plan_cleaning(
            log_,
            checkpointed_offset=self._checkpoints.get(partition),
            last_stable_offset=end_offset,
            now_ms=now_ms,
        )

    def cleaned(self, partition: Partition, result: CleaningResult) -> None:
        """A round is over: a log is clean up to an offset, or has nothing that has expired for now."""
        self._uncleanable.pop(partition, None)
        if not isinstance(result.plan, ExpiryPlan):
            self._checkpoints.set(partition, result.first_dirty_offset)
            return
        token = _token(result.plan.config)
        segments = {(each.base_offset, each.size_bytes) for each in partition.log.segments}
        known = self._looks.get(partition, {}).get(token, {})
        looks = {each: not_before_ms for each, not_before_ms in known.items() if each in segments}
        looks.update(((each.base_offset, each.size_bytes), each.not_before_ms) for each in result.looks)
        self._looks[partition] = {token: looks}

    def forget(self, partition: Partition) -> None:
        """The log is gone, or about to move."""
        self._uncleanable.pop(partition, None)
        self._looks.pop(partition, None)
        self._checkpoints.forget(partition)

    def leave_alone(self, partition: Partition, fault: BaseException, *, until_restart: bool = False) -> None:
        """A log cannot be compacted for now; the others can."""
        failures = 1 + (self._uncleanable[partition].failures if partition in self._uncleanable else 0)
        backoff_ms = max(1, self._settings.get_int("log.cleaner.backoff.ms")) << min(failures - 1, 20)
        retry_ms = math.inf if until_restart else min(UNCLEANABLE_MS_MAX, backoff_ms)
        reason = str(fault) or type(fault).__name__
        self._uncleanable[partition] = Uncleanable(failures, self._clock.monotonic_ms() + retry_ms, reason)
        until = "until a restart" if until_restart else f"for {retry_ms / 1000:g} s"
        bug = not isinstance(fault, ENVIRONMENT)
        if bug and self._jobs.raise_unexpected:
            raise fault
        log.error(
            "%s cannot be compacted and is left alone %s: %s",
            partition,
            until,
            reason,
            exc_info=fault if bug else None,
        )
        self._metrics.cleaner.failures += 1
        fields = {"topic": partition.topic, "partition": partition.index, "failures": failures}
        self._metrics.events.emit(COMPACTION_FAILED, fields, cause=reason)

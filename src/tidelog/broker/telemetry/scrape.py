"""Work out what a broker's metrics are now, in small steps.

`scrape` is a generator: between two pieces of text the event loop may serve requests, so a broker with ten
thousand partitions is not held up by being looked at. Figures of one scrape may therefore be some
milliseconds apart. Nothing that changes is iterated over across a step.

Series by topic are given to the first `tidelog.metrics.topics.max` topics, which keep them; counts that moved
between series would look like resets. Series by group go to those with most lag.
"""

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tidelog import __version__
from tidelog.broker.maintenance.compaction import JOB as COMPACTION_JOB
from tidelog.broker.maintenance.dirty_logs import DirtyLogs
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.fetch_sessions import FetchSessions
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.followed_logs import FollowedLogs
from tidelog.broker.replication.replication import Replication
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.liveness import Liveness
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import Purgatory
from tidelog.broker.runtime.topic_traffic import TopicCounts
from tidelog.broker.telemetry.exposition import family, histograms, single
from tidelog.broker.telemetry.group_lag import GroupLags
from tidelog.broker.telemetry.share_families import ShareFamilies
from tidelog.model.errors import ErrorCode
from tidelog.model.events import (
    COMMITTED_RECORDS_CUT,
    ISR_EXPANDED,
    ISR_SHRANK,
    LEADER_ELECTED,
    LEADER_ELECTED_UNCLEANLY,
    SESSION_LOST,
)
from tidelog.model.identifiers import NO_LEADER
from tidelog.protocol.apis import APIS
from tidelog.storage.log_directories import LogDirectories

if TYPE_CHECKING:
    from tidelog.broker.coordinators.delays import Delays
    from tidelog.broker.coordinators.transactions import Transactions

#: replicas looked at in one step
REPLICAS_PER_STEP = 250
_CODES = {int(code): code.name for code in ErrorCode}
_NOT_COUNTED_YET = TopicCounts()


class Section(Protocol):
    """Families that belong together."""

    def run(self) -> Iterator[str]:
        """The text, piece by piece; pieces may be empty."""


class Scrape:
    """Looks at one broker, again and again."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self._sections = sections

    def run(self) -> Iterator[str]:
        """The text, piece by piece; pieces may be empty."""
        for section in self._sections:
            yield from section.run()


@dataclass(slots=True)
class RequestFamilies:
    """Requests, and those that wait."""

    metrics: Metrics
    purgatory: Purgatory
    fetch_sessions: FetchSessions

    def run(self) -> Iterator[str]:
        requests = self.metrics.requests
        requests.settle()
        yield "".join(
            (
                histograms(
                    "tidelog_request_seconds",
                    {(_api_name(key),): each for key, each in sorted(requests.latencies.items())},
                ),
                family(
                    "tidelog_request_errors_total",
                    [
                        ((_api_name(key), _CODES.get(code, str(code))), count)
                        for (key, code), count in sorted(requests.errors.items())
                    ],
                ),
                single("tidelog_parked_requests", self.purgatory.count),
                single("tidelog_fetch_sessions", len(self.fetch_sessions)),
            )
        )


@dataclass(slots=True)
class ReplicaFamilies:
    """Replicas, and topics by name."""

    metrics: Metrics
    settings: LiveSettings
    replicas: Replicas
    replication: Replication
    log_directories: LogDirectories
    followed_logs: FollowedLogs
    #: topics that have series, in the order in which they were first seen
    _shown: dict[str, None] = field(init=False, default_factory=dict)

    def run(self) -> Iterator[str]:
        traffic = self.metrics.traffic
        sizes: Counter[str] = Counter()
        segments: Counter[str] = Counter()
        under_replicated = under_min_isr = producers = 0
        for number, partition in enumerate(list(self.replicas), 1):
            if number % REPLICAS_PER_STEP == 0:
                yield ""
            if self.replicas.replica(partition.topic, partition.index) is not partition:
                continue  # given up since the list was made
            traffic.settle(partition)
            sizes[partition.topic] += partition.log.size_bytes
            segments[partition.topic] += len(partition.log.segments)
            if partition.leads:
                producers += partition.log.producers.producers_count
                replicas = partition.replicas
                if replicas is not None:
                    under_replicated += len(replicas.isr) < replicas.replica_count
                    under_min_isr += replicas.under_min_isr(partition.config.min_insync_replicas)
        yield from self._topic_families(sizes, segments)
        counts = self.metrics.events.counts
        yield "".join(
            (
                single("tidelog_partitions_led", len(self.replicas.led)),
                single("tidelog_partitions_followed", len(self.replicas.followed)),
                single("tidelog_under_replicated_partitions", under_replicated),
                single("tidelog_under_min_isr_partitions", under_min_isr),
                single("tidelog_offline_replicas", len(self.replicas.offline)),
                single("tidelog_refused_cuts", len(self.followed_logs.refused_cuts)),
                single("tidelog_committed_cuts_total", counts[COMMITTED_RECORDS_CUT]),
                single("tidelog_offline_directories", len(self.log_directories.offline)),
                single("tidelog_unopened_topics", len(self.replication.unopened_topics)),
                single("tidelog_isr_shrinks_total", counts[ISR_SHRANK]),
                single("tidelog_isr_expands_total", counts[ISR_EXPANDED]),
                single("tidelog_replication_bytes_in_total", traffic.replication_bytes_in),
                single("tidelog_replication_bytes_out_total", traffic.replication_bytes_out),
                single("tidelog_producers", producers),
            )
        )

    def _topic_families(self, sizes: Counter[str], segments: Counter[str]) -> Iterator[str]:
        found = self.metrics.traffic.topics
        shown = self._shown_topics(found)
        rows = [(name, found.get(name, _NOT_COUNTED_YET)) for name in shown]
        yield family("tidelog_topic_bytes_in_total", [((n,), c.bytes_in) for n, c in rows])
        yield family("tidelog_topic_messages_in_total", [((n,), c.messages_in) for n, c in rows])
        yield family("tidelog_topic_bytes_out_total", [((n,), c.bytes_out) for n, c in rows])
        yield family("tidelog_topic_messages_out_total", [((n,), c.messages_out) for n, c in rows])
        yield family("tidelog_topic_segment_rolls_total", [((n,), c.rolls) for n, c in rows])
        yield family("tidelog_topic_log_size_bytes", [((n,), sizes[n]) for n in shown])
        yield family("tidelog_topic_segments", [((n,), segments[n]) for n in shown])
        yield single("tidelog_topics_left_out", len(found) - len(shown))

    def _shown_topics(self, found: dict[str, TopicCounts]) -> list[str]:
        """The topics with series: those that had some, then others while there is room."""
        limit = self.settings.get_int("tidelog.metrics.topics.max")
        for gone in [name for name in self._shown if name not in found]:
            del self._shown[gone]
        if len(self._shown) < min(limit, len(found)):
            for name in sorted(found):
                if len(self._shown) >= limit:
                    break
                self._shown[name] = None
        return list(self._shown)[:limit]


@dataclass(slots=True)
class ClusterFamilies:
    """The cluster, as this broker knows it."""

    metrics: Metrics
    metadata: Metadata
    liveness: Liveness
    #: what was found in an image, and its version
    _image_version: int = field(init=False, default=-1)
    _offline: int = field(init=False, default=0)
    _partitions: int = field(init=False, default=0)

    def run(self) -> Iterator[str]:
        metadata, counts = self.metadata, self.metrics.events.counts
        image = metadata.image
        decides = metadata.is_controller
        elected = counts[LEADER_ELECTED], counts[LEADER_ELECTED_UNCLEANLY]
        parts = [
            single("tidelog_active_controller", int(decides)),
            single("tidelog_alive_brokers", len(image.alive_brokers)),
            family("tidelog_leader_elections_total", [(("true",), elected[0]), (("false",), elected[1])]),
            single("tidelog_metadata_sequence", metadata.sequence),
            single("tidelog_broker_registered", int(metadata.broker_epoch >= 0)),
            family(
                "tidelog_stalls_total",
                [((cause,), count) for cause, count in sorted(self.liveness.lapses.items())],
            ),
            single("tidelog_disk_silent_seconds", self.liveness.disks.silent_ms() / 1000),
            single("tidelog_session_losses_total", counts[SESSION_LOST]),
        ]
        if decides:
            self._count_image()
            parts += [
                single("tidelog_controller_epoch", metadata.controller_epoch),
                single("tidelog_offline_partitions", self._offline),
                single("tidelog_cluster_partitions", self._partitions),
                single("tidelog_cluster_topics", len(image.topics)),
            ]
        yield "".join(parts)

    def _count_image(self) -> None:
        image = self.metadata.image
        if image.version == self._image_version:
            return
        self._image_version = image.version
        topics = image.topics.values()
        self._partitions = sum(len(topic.partitions) for topic in topics)
        self._offline = sum(each.leader == NO_LEADER for topic in topics for each in topic.partitions)


@dataclass(slots=True)
class DiskFamilies:
    """Flushes and cleaning."""

    metrics: Metrics

    def run(self) -> Iterator[str]:
        metrics = self.metrics
        cleaner = metrics.cleaner
        yield "".join(
            (
                histograms("tidelog_flush_seconds", {(): metrics.flushes}),
                single("tidelog_flush_failures_total", metrics.flush_failures),
                single("tidelog_cleaner_rounds_total", cleaner.rounds),
                single("tidelog_cleaner_failures_total", cleaner.failures),
                single("tidelog_cleaner_records_read_total", cleaner.records_read),
                single("tidelog_cleaner_records_kept_total", cleaner.records_kept),
                single("tidelog_cleaner_bytes_read_total", cleaner.bytes_read),
                single("tidelog_cleaner_bytes_written_total", cleaner.bytes_written),
            )
        )


@dataclass(slots=True)
class BackgroundFamilies:
    """What the broker does by itself."""

    jobs: BackgroundJobs
    log_directories: LogDirectories
    dirty_logs: DirtyLogs

    def run(self) -> Iterator[str]:
        jobs, log_directories = self.jobs, self.log_directories
        cleaner = jobs.job(COMPACTION_JOB)
        counts = {directory.path: [0, 0] for directory in log_directories.directories}
        for partition in self.dirty_logs.uncleanable:
            key = partition.place
            found = counts[log_directories.directory_of(key).path]
            found[0] += 1
            found[1] += partition.log.size_bytes
        rows = [((job.name,), job) for job in jobs]
        yield "".join(
            (
                family(
                    "tidelog_cleaner_uncleanable_partitions", [((path,), n[0]) for path, n in counts.items()]
                ),
                family("tidelog_cleaner_uncleanable_bytes", [((path,), n[1]) for path, n in counts.items()]),
                single("tidelog_cleaner_seconds_since_last_run", jobs.seconds_since_last_run(cleaner)),
                single("tidelog_cleaner_dead_threads", int(cleaner.failing)),
                family("tidelog_background_runs_total", [(name, job.runs) for name, job in rows]),
                family("tidelog_background_failures_total", [(name, job.failures) for name, job in rows]),
                family("tidelog_background_failing", [(name, job.failed_in_a_row) for name, job in rows]),
                family(
                    "tidelog_background_seconds_since_last_run",
                    [(name, jobs.seconds_since_last_run(job)) for name, job in rows],
                ),
                single("tidelog_unexpected_errors_total", jobs.unexpected_count),
            )
        )


@dataclass(slots=True)
class TransactionFamilies:
    """Transactions that are coordinated here."""

    metrics: Metrics
    transactions: "Deferred[Transactions]"

    def run(self) -> Iterator[str]:
        states: Counter[str] = Counter()
        if (made := self.transactions.made) is not None:
            for machine in made.coordinator.loaded_machines():
                yield ""
                states.update(str(each.state) for each in list(machine.transactions.values()))
        aborted, committed = self.metrics.transactions_decided
        yield family("tidelog_transactions", [((state,), n) for state, n in sorted(states.items())])
        outcomes = [(("abort",), aborted), (("commit",), committed)]
        yield family("tidelog_transactions_decided_total", outcomes)


@dataclass(slots=True)
class DelayFamilies:
    """Delayed records."""

    delays: "Deferred[Delays]"
    settings: LiveSettings

    def run(self) -> Iterator[str]:
        found = {} if self.delays.made is None else self.delays.made.figures()
        shown = sorted(found.items())[: self.settings.get_int("tidelog.metrics.topics.max")]
        yield "".join(
            (
                family("tidelog_delay_waiting", [((topic,), each.waiting) for topic, each in shown]),
                family("tidelog_delay_due", [((topic,), each.due) for topic, each in shown]),
                family(
                    "tidelog_delay_late_seconds", [((topic,), each.late_ms / 1_000) for topic, each in shown]
                ),
                family(
                    "tidelog_delay_forwarded_total", [((topic,), each.forwarded) for topic, each in shown]
                ),
                family(
                    "tidelog_delay_cancelled_total", [((topic,), each.cancelled) for topic, each in shown]
                ),
            )
        )


@dataclass(slots=True)
class LimitFamilies:
    """Who had to wait, and what happened."""

    metrics: Metrics

    def run(self) -> Iterator[str]:
        metrics = self.metrics
        counts, waits = metrics.throttle_count, metrics.throttle_ms
        yield "".join(
            (
                family("tidelog_throttled_total", [((quota,), n) for quota, n in sorted(counts.items())]),
                family(
                    "tidelog_throttle_seconds_total",
                    [((quota,), n / 1000) for quota, n in sorted(waits.items())],
                ),
                family(
                    "tidelog_events_total",
                    [((kind,), n) for kind, n in sorted(metrics.events.counts.items())],
                ),
            )
        )


@dataclass(slots=True)
class IdentityFamilies:
    """Which broker this is."""

    node_id: int
    metadata: Metadata
    settings: LiveSettings

    def run(self) -> Iterator[str]:
        who = (str(self.node_id), self.metadata.image.cluster_id, self.settings.rack or "")
        yield family("tidelog_broker_info", [(who, 1)]) + family(
            "tidelog_build_info", [((__version__, platform.python_version()), 1)]
        )


#: in the order of the text
SECTIONS: tuple[type[Section], ...] = (
    RequestFamilies,
    ReplicaFamilies,
    ClusterFamilies,
    DiskFamilies,
    BackgroundFamilies,
    GroupLags,
    ShareFamilies,
    TransactionFamilies,
    DelayFamilies,
    LimitFamilies,
    IdentityFamilies,
)


def _api_name(key: int) -> str:
    api = APIS.get(key)
    return str(key) if api is None else api.name

"""The values of `tidelog doctor`: what was seen of a cluster, and what that says about it.

An `Examination` is everything that was asked, at one moment; what the cluster would not tell is None or empty
and named in `unseen`. A `Finding` is one sentence about it with the next step to take. The checks between the
two are pure (`diagnosis_checks`), those who ask are in `examination`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tidelog.admin.log_dirs import LogDirView
from tidelog.admin.transactions import OpenProducer, TransactionView

#: what keeps records when a broker dies and another is away
REPLICAS_WANTED = 3
#: only brokers of ours have this setting
SETTING_OF_TIDELOG = "tidelog.parked.requests.max"

Partition = tuple[str, int]


class Severity(IntEnum):
    """How bad it is; the worst one decides the exit code."""

    OK = 0
    HINT = 1
    WARNING = 2
    PROBLEM = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says about one subject; `next_step` is empty where nothing is to be done."""

    check: str
    severity: Severity
    message: str
    next_step: str = ""
    subjects: tuple[str, ...] = ()


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, message)


def hint(check: str, message: str, next_step: str, *subjects: str) -> Finding:
    """Something worth knowing."""
    return Finding(check, Severity.HINT, message, next_step, subjects)


def warning(check: str, message: str, next_step: str, *subjects: str) -> Finding:
    """Something that will hurt once the next thing goes wrong."""
    return Finding(check, Severity.WARNING, message, next_step, subjects)


def problem(check: str, message: str, next_step: str, *subjects: str) -> Finding:
    """Something that keeps clients from what they were promised, or loses records."""
    return Finding(check, Severity.PROBLEM, message, next_step, subjects)


@dataclass(frozen=True, slots=True)
class SeenBroker:
    """A broker; without an address it is known only from the replicas that it holds."""

    id: int
    address: str | None
    alive: bool = True
    #: of one that is not: whether somebody at its address takes connections, and answers
    listens: bool = False
    answers: bool = False
    #: why the advertised address did not answer; None if it did or was not tried
    fault: str | None = None
    #: what the one who answers there says it belongs to
    cluster_id: str | None = None
    #: False if somebody else answers at this broker's address
    itself: bool = True
    #: versions of each API: key, lowest and highest
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)
    certificate_expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """A partition; `offline_replicas` are those on dead brokers or failed disks.

    `elr` and `last_known_elr` are asked for where there is no leader.
    """

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class SeenTopic:
    name: str
    internal: bool
    partitions: tuple[SeenPartition, ...]
    configs: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def replication_factor(self) -> int:
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def min_insync_replicas(self) -> int | None:
        value = self.configs.get("min.insync.replicas")
        return int(value) if value is not None else None


@dataclass(frozen=True, slots=True)
class LogRange:
    """Where a partition's log begins and ends, and where read_committed readers must stop."""

    start: int
    end: int
    last_stable: int
    newest_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group; `committed_later` is what it had committed when it was looked at once more."""

    id: str
    state: str
    kind: str
    members: int
    committed: Mapping[Partition, int]
    state_later: str | None = None
    committed_later: Mapping[Partition, int] | None = None


@dataclass(frozen=True, slots=True)
class ShareLook:
    """A share group at one moment, in records; all but the lag are 0 where brokers are not ours."""

    #: still to be dealt with
    lag: int = 0
    #: members have them
    acquired: int = 0
    #: in flight, and delivered more than once
    repeated: int = 0
    #: wait for their dead letters to be written
    archiving: int = 0
    #: since the brokers started: delivered at all, and as often as `limit` allows
    delivered: int = 0
    delivered_last: int = 0
    limit: int = 0
    #: accepted, released or rejected
    said: int = 0
    lock_expiries: int = 0
    #: dead letters that could not be written
    given_up: int = 0

    @property
    def waits(self) -> bool:
        """Whether a second look may say more."""
        return bool(self.lag or self.archiving)


@dataclass(frozen=True, slots=True)
class SeenShareGroup:
    """A share group; `later` is what it was when it was looked at once more."""

    id: str
    state: str
    members: int
    look: ShareLook
    dead_letter_topic: str | None = None
    later: ShareLook | None = None


@dataclass(frozen=True, slots=True)
class SeenJob:
    """Something that a broker does again and again by itself; `fault` is what went wrong last."""

    broker: int
    name: str
    failed_in_a_row: int
    seconds_since_last_run: float
    fault: str


@dataclass(frozen=True, slots=True)
class SeenUncleanable:
    """A log that a broker cannot compact."""

    broker: int
    partition: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeenRefusedCut:
    """A follower that would lose committed records by following its leader, and does not."""

    broker: int
    partition: str
    leader: int
    offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class SeenJobs:
    """What the brokers tell of their background jobs; those of another make tell nothing."""

    jobs: tuple[SeenJob, ...] = ()
    #: some of those that cannot be compacted, and how many there are on each broker
    uncleanable: tuple[SeenUncleanable, ...] = ()
    uncleanable_counts: Mapping[int, int] = field(default_factory=dict)
    #: errors in its own code that a broker was not prepared for
    unexpected_errors: Mapping[int, int] = field(default_factory=dict)
    #: why directories are not used, by broker and path
    offline_directories: Mapping[tuple[int, str], str] = field(default_factory=dict)
    refused_cuts: tuple[SeenRefusedCut, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination:
    """A cluster as it was seen; times are ours, in ms; `watched_seconds` lie between two looks."""

    bootstrap: str
    now_ms: int
    cluster_id: str | None = None
    controller: int | None = None
    brokers: tuple[SeenBroker, ...] = ()
    topics: tuple[SeenTopic, ...] = ()
    logs: Mapping[Partition, LogRange] = field(default_factory=dict)
    groups: tuple[SeenGroup, ...] = ()
    share_groups: tuple[SeenShareGroup, ...] = ()
    watched_seconds: float = 0.0
    #: those that their coordinators know to be open
    transactions: tuple[TransactionView, ...] = ()
    #: those that are open in a partition, and were still open at a second look
    open_producers: tuple[OpenProducer, ...] = ()
    log_dirs: tuple[LogDirView, ...] = ()
    background: SeenJobs = field(default_factory=SeenJobs)
    #: the clock of the controllers' leader when it answered, and ours before and after
    controller_clock_ms: tuple[int, int, int] | None = None
    encrypted: bool = False
    #: what could not be asked, and why
    unseen: tuple[str, ...] = ()

    @property
    def alive(self) -> tuple[SeenBroker, ...]:
        return tuple(broker for broker in self.brokers if broker.alive)

    @property
    def partitions(self) -> tuple[SeenPartition, ...]:
        return tuple(partition for topic in self.topics for partition in topic.partitions)


def worst(findings: list[Finding]) -> Severity:
    return max((finding.severity for finding in findings), default=Severity.OK)


def some(names: list[str] | tuple[str, ...], shown_max: int = 5) -> str:
    """The first few names, and how many there are more."""
    rest = len(names) - shown_max
    return ", ".join(names[:shown_max]) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, word: str) -> str:
    """`1 broker`, `3 brokers`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"

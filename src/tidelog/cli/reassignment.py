"""Carrying out a reassignment: the requests, the throttle, and waiting until it is done."""

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.cli.cluster_state import ClusterAdmin
from tidelog.cli.config import alter_configs
from tidelog.cli.errors import CommandError, hint_for
from tidelog.cli.reassignment_plan import Assignment, ReassignmentPlan

ELECT_LEADERS = 43
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
UNREGISTER_BROKER = 64
ELECTION_PREFERRED = 0
ELECTION_UNCLEAN = 1
ELECTION_NOT_NEEDED = 84
POLL_SECONDS = 0.5

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


class Ongoing(NamedTuple):
    """A reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Outcome(NamedTuple):
    """What became of one partition: the name of an error, or None."""

    topic: str
    partition: int
    error: str | None
    message: str | None


def alter_reassignments(
    cluster: ClusterAdmin, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
) -> list[Outcome]:
    """Ask for new replicas, or with None to go back to the old ones; the outcome of each partition."""
    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse

    cluster.require(ALTER_PARTITION_REASSIGNMENTS, 0, "reassignment of partitions")
    partition_class: Callable[..., Any] = ReassignablePartition
    topic_class: Callable[..., Any] = ReassignableTopic
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), replicas in targets.items():
        entry = partition_class(partition_index=partition, replicas=replicas)
        by_topic.setdefault(topic, []).append(entry)
    topics = tuple(topic_class(name=name, partitions=tuple(entries)) for name, entries in by_topic.items())
    answer = cluster.call(
        AlterPartitionReassignmentsRequest(timeout=_timeout(cluster), topics=topics),
        AlterPartitionReassignmentsResponse,
    )
    _check(answer.error_code, answer.error_message, "the reassignment was refused")
    return [
        Outcome(topic.name, item.partition_index, _error_name(item.error_code), item.error_message)
        for topic in answer.responses
        for item in topic.partitions
    ]


def list_reassignments(cluster: ClusterAdmin) -> list[Ongoing]:
    """Every reassignment under way."""
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

    cluster.require(LIST_PARTITION_REASSIGNMENTS, 0, "a list of reassignments")
    request = ListPartitionReassignmentsRequest(timeout=_timeout(cluster), topics=None)
    answer = cluster.call(request, ListPartitionReassignmentsResponse)
    _check(answer.error_code, answer.error_message, "the reassignments cannot be listed")
    return [
        Ongoing(
            topic.name,
            item.partition_index,
            tuple(item.replicas),
            tuple(item.adding_replicas),
            tuple(item.removing_replicas),
        )
        for topic in answer.topics
        for item in topic.partitions
    ]


def elect_leaders(
    cluster: ClusterAdmin, election_type: int, partitions: Iterable[tuple[str, int]] | None
) -> list[Outcome]:
    """Ask for elections (None: of every partition); those that needed none come back with that error."""
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
    from kio.schema.elect_leaders.v2.response import ElectLeadersResponse

    cluster.require(ELECT_LEADERS, 2, "elections by request")
    topics: tuple[Any, ...] | None = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        make_topic: Callable[..., Any] = TopicPartitions
        topics = tuple(make_topic(topic=name, partitions=tuple(found)) for name, found in by_topic.items())
    make: Callable[..., Any] = ElectLeadersRequest
    request = make(election_type=election_type, topic_partitions=topics, timeout=_timeout(cluster))
    answer = cluster.call(request, ElectLeadersResponse)
    _check(answer.error_code, None, "the election was refused")
    return [
        Outcome(topic.topic, item.partition_id, _error_name(item.error_code), item.error_message)
        for topic in answer.replica_election_results
        for item in topic.partition_result
    ]


def unregister_broker(cluster: ClusterAdmin, broker_id: int) -> None:
    """Make the cluster forget a broker."""
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
    from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

    cluster.require(UNREGISTER_BROKER, 0, "unregistering brokers")
    request = UnregisterBrokerRequest(broker_id=broker_id)  # type: ignore[arg-type]
    answer = cluster.call(request, UnregisterBrokerResponse)
    _check(answer.error_code, answer.error_message, f"broker {broker_id} was not unregistered")


class Throttle:
    """Limits what a reassignment copies per second, by settings of the brokers and topics that take part."""

    def __init__(
        self, cluster: ClusterAdmin, plan: ReassignmentPlan, bytes_per_second: int, alive: Container[int]
    ) -> None:
        self._cluster = cluster
        self.rate = str(bytes_per_second)
        involved = {broker for move in plan.moves for broker in (*move.before, *move.after)}
        # A broker takes its own settings, so one that is dead cannot be told, and needs no limit.
        self.brokers = sorted(broker for broker in involved if broker in alive)
        self.topics = throttled_replicas(plan)

    def set(self) -> None:
        """Set it before the reassignment begins."""
        rates = {LEADER_RATE: self.rate, FOLLOWER_RATE: self.rate}
        for broker in self.brokers:
            self._alter("broker", str(broker), rates, ())
        for topic, settings in self.topics.items():
            self._alter("topic", topic, settings, ())

    def clear(self) -> None:
        """Take it away when everything is copied."""
        for broker in self.brokers:
            self._alter("broker", str(broker), {}, (LEADER_RATE, FOLLOWER_RATE))
        for topic in self.topics:
            self._alter("topic", topic, {}, (LEADER_REPLICAS, FOLLOWER_REPLICAS))

    def _alter(self, kind: str, name: str, values: dict[str, str], removed: tuple[str, ...]) -> None:
        alter_configs(self._cluster.connection, self._cluster.admin, kind, name, values, removed, quiet=True)


def throttled_replicas(plan: ReassignmentPlan) -> dict[str, dict[str, str]]:
    """The topic settings that name the replicas to throttle: old ones as leaders, new ones as followers."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in plan.moves:
        if move.adding:
            leaders.setdefault(move.topic, []).extend(f"{move.partition}:{broker}" for broker in move.before)
            followers.setdefault(move.topic, []).extend(
                f"{move.partition}:{broker}" for broker in move.adding
            )
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }


def start(cluster: ClusterAdmin, plan: ReassignmentPlan) -> None:
    """Begin every move of a plan; if one is refused the others still go on, and the error says which."""
    outcomes = alter_reassignments(cluster, {(move.topic, move.partition): move.after for move in plan.moves})
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    if refused:
        lines = "\n  - ".join(
            f"{item.topic}-{item.partition}: {item.error} {item.message or ''}".rstrip() for item in refused
        )
        raise CommandError(
            f"{len(refused)} of {len(outcomes)} reassignments were refused:\n  - {lines}",
            "'tidelog cluster reassign --list' shows what goes on, --cancel takes it back",
        )


def wait_done(
    cluster: ClusterAdmin,
    plan: ReassignmentPlan,
    progress: Callable[[int, int], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[Assignment]:
    """Wait until no partition of the plan is under way any more; what did not end as planned comes back."""
    wanted = {(move.topic, move.partition): move.after for move in plan.moves}
    while True:
        ongoing = {(item.topic, item.partition) for item in list_reassignments(cluster)}
        left = ongoing & set(wanted)
        progress(len(wanted) - len(left), len(wanted))
        if not left:
            break
        sleep(POLL_SECONDS)
    now = {(item.topic, item.partition): item for item in cluster.state().assignments}
    return [now[key] for key, replicas in wanted.items() if key in now and now[key].replicas != replicas]


def _timeout(cluster: ClusterAdmin) -> Any:
    import datetime

    return datetime.timedelta(seconds=cluster.connection.timeout_seconds)


def _error_name(error: Any) -> str | None:
    return None if error.value == 0 else str(error.name).upper()


def _check(error: Any, message: str | None, failure: str) -> None:
    if error.value != 0:
        name = str(error.name).upper()
        reason = f"{message} ({name})" if message else name
        raise CommandError(f"{failure}: {reason}", hint_for(name))

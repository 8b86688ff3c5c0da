"""Carrying out a reassignment: the requests, the throttle, and waiting until it is done."""

import time
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import cluster_state
from tidelog.admin.configs import ConfigResource, alter_configs
from tidelog.admin.faults import AdminFault
from tidelog.admin.reassignment_plan import Assignment, ReassignmentPlan
from tidelog.client.api_keys import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
)
from tidelog.client.faults import known_code

#: how long a broker may take for the change itself
TIMEOUT = timedelta(seconds=10)
ELECTION_PREFERRED = 0
ELECTION_UNCLEAN = 1
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


class ReassignmentResult(NamedTuple):
    """What became of one partition: the name of an error, or None."""

    topic: str
    partition: int
    error: str | None
    message: str | None


def alter_reassignments(
    admin: ClusterAdmin, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
) -> list[ReassignmentResult]:
    """Ask for new replicas, or with None to go back to the old ones; the outcome of each partition."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), replicas in targets.items():
        by_topic.setdefault(topic, []).append({"partition_index": partition, "replicas": replicas})
    topics = [{"name": name, "partitions": rows} for name, rows in by_topic.items()]
    _require(admin, ALTER_PARTITION_REASSIGNMENTS, 0, "reassignment of partitions")
    answer = admin.request(
        "the reassignment was refused",
        ALTER_PARTITION_REASSIGNMENTS,
        {"timeout": TIMEOUT, "topics": topics},
        highest=0,
    )
    return [
        ReassignmentResult(
            str(topic.name), int(row.partition_index), _error_name(row.error_code), row.error_message
        )
        for topic in answer.responses
        for row in topic.partitions
    ]


def list_reassignments(admin: ClusterAdmin) -> list[Ongoing]:
    """Every reassignment under way."""
    _require(admin, LIST_PARTITION_REASSIGNMENTS, 0, "a list of reassignments")
    what = "the reassignments cannot be listed"
    fields = {"timeout": TIMEOUT, "topics": None}
    answer = admin.request(what, LIST_PARTITION_REASSIGNMENTS, fields, highest=0)
    return [
        Ongoing(
            str(topic.name),
            int(row.partition_index),
            tuple(row.replicas),
            tuple(row.adding_replicas),
            tuple(row.removing_replicas),
        )
        for topic in answer.topics
        for row in topic.partitions
    ]


def elect_leaders(
    admin: ClusterAdmin, election_type: int, partitions: Iterable[tuple[str, int]] | None
) -> list[ReassignmentResult]:
    """Ask for elections (None: of every partition); those that needed none come back with that error."""
    topics: list[dict[str, Any]] | None = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        topics = [{"topic": name, "partitions": tuple(found)} for name, found in by_topic.items()]
    fields = {"election_type": election_type, "topic_partitions": topics, "timeout": TIMEOUT}
    _require(admin, ELECT_LEADERS, 2, "elections by request")
    answer = admin.request("the election was refused", ELECT_LEADERS, fields, lowest=2, highest=2)
    return [
        ReassignmentResult(
            str(topic.topic), int(row.partition_id), _error_name(row.error_code), row.error_message
        )
        for topic in answer.replica_election_results
        for row in topic.partition_result
    ]


def unregister_broker(admin: ClusterAdmin, broker_id: int) -> None:
    """Make the cluster forget a broker."""
    _require(admin, UNREGISTER_BROKER, 0, "unregistering brokers")
    what = f"broker {broker_id} was not unregistered"
    admin.request(what, UNREGISTER_BROKER, {"broker_id": broker_id}, highest=0)


class MoveThrottle:
    """Limits what a reassignment copies per second, by settings of the brokers and topics that take part."""

    def __init__(
        self, admin: ClusterAdmin, plan: ReassignmentPlan, bytes_per_second: int, alive: Container[int]
    ) -> None:
        self._admin = admin
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
        alter_configs(self._admin, ConfigResource[kind.upper()], name, values, removed)


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


def start(admin: ClusterAdmin, plan: ReassignmentPlan) -> None:
    """Begin every move of a plan; if one is refused the others still go on, and the error says which."""
    outcomes = alter_reassignments(admin, {(move.topic, move.partition): move.after for move in plan.moves})
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    if refused:
        lines = "\n  - ".join(
            f"{item.topic}-{item.partition}: {item.error} {item.message or ''}".rstrip() for item in refused
        )
        raise AdminFault(
            f"{len(refused)} of {len(outcomes)} reassignments were refused:\n  - {lines}",
            "'tidelog cluster reassign --list' shows what goes on, --cancel takes it back",
        )


def wait_done(
    admin: ClusterAdmin,
    plan: ReassignmentPlan,
    progress: Callable[[int, int], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[Assignment]:
    """Wait until no partition of the plan is under way any more; what did not end as planned comes back."""
    wanted = {(move.topic, move.partition): move.after for move in plan.moves}
    while True:
        ongoing = {(item.topic, item.partition) for item in list_reassignments(admin)}
        left = ongoing & set(wanted)
        progress(len(wanted) - len(left), len(wanted))
        if not left:
            break
        sleep(POLL_SECONDS)
    now = {(item.topic, item.partition): item for item in cluster_state(admin).assignments}
    return [now[key] for key, replicas in wanted.items() if key in now and now[key].replicas != replicas]


def _error_name(code: int) -> str | None:
    return known_code(code).name if code else None


def _require(admin: ClusterAdmin, api_key: int, version: int, what: str) -> None:
    """Refuse with a sentence what the cluster does not offer."""
    offered = admin.asked("the cluster does not answer", lambda cluster: cluster.any_link().offers(api_key))
    if offered is None or not offered[0] <= version <= offered[1]:
        raise AdminFault(
            f"the cluster does not offer {what} (API {api_key} version {version})",
            "its brokers are older than this: upgrade them, or use the tools that came with them",
        )

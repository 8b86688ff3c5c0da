"""Asks a cluster everything that `tidelog doctor` wants to know; any Kafka-protocol cluster will do.

Each broker is asked at the address it advertises, over one connection of our own, with requests that clients
may send (DescribeCluster, Metadata, DescribeConfigs, ListOffsets, ListGroups, …). A broker that does not
answer, an API that it does not have and a right that we lack keep nothing from the rest: they are named in
`unseen`.

Groups that wait and transactions that may hang are looked at twice, `watch_seconds` apart: only what has not
moved in between is called stuck. Nothing is ever changed.
"""

import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from tidelog.admin.broker_links import BrokerLinks
from tidelog.admin.cluster_state import QUORUM_TOPIC, ask_metadata, known_brokers
from tidelog.admin.configs import ConfigResource
from tidelog.admin.diagnosis import (
    SETTING_OF_TIDELOG,
    Examination,
    LogRange,
    Partition,
    SeenBroker,
    SeenPartition,
    SeenTopic,
)
from tidelog.admin.diagnosis_checks import SHARED_SETTINGS
from tidelog.admin.diagnosis_internal_topics import STORE_SETTINGS
from tidelog.admin.diagnosis_shares import AUTO_CREATE, GROUP_ENABLE, NAME_PREFIX
from tidelog.admin.eligible_leaders import Eligible, eligible_leaders
from tidelog.admin.examined_groups import GroupQuestions
from tidelog.admin.examined_jobs import ask_for_jobs
from tidelog.admin.examined_shares import with_share_groups
from tidelog.admin.examined_transactions import TransactionQuestions
from tidelog.admin.faults import AdminFault
from tidelog.admin.log_dirs import LogDirView, describe_at
from tidelog.client.api_keys import (
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    LIST_OFFSETS,
)
from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.client.faults import ClientFault, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode

TOPICS_PER_REQUEST = 500
NEWEST = -3
NEWEST_SINCE_VERSION = 7
LINKS_OPENED_AT_ONCE = 16
#: a broker that is given up as dead is not waited for as long
KNOCK_SECONDS_MAX = 2.0
#: long enough to tell a transaction that is ending from one that hangs
SECOND_LOOK_SECONDS = 1.0
TOPIC_SETTINGS = ("min.insync.replicas", "unclean.leader.election.enable", GROUP_ENABLE)


class NotReachable(AdminFault):
    """No bootstrap address leads to a broker that talks to us."""


def examine(
    bootstrap: str,
    settings: ClientSettings,
    watch_seconds: float,
    tell: Callable[[str], None] = lambda text: None,
) -> Examination:
    """Look at a cluster; raises NotReachable if nobody answers."""
    first = _bootstrap_link(bootstrap, settings)
    try:
        tell("asking for brokers and topics")
        metadata = ask_metadata(first)
        known = tuple(
            SeenBroker(broker.id, broker.address, alive=broker.alive)
            for broker in known_brokers(first, metadata)
        )
    except ClientFault as fault:
        raise NotReachable(f"{bootstrap} answers, but not as a broker would: {fault}") from fault
    finally:
        first.close()
    tell(f"connecting to {len(known)} brokers")
    links, seen_brokers = _open_links(known, settings)
    brokers = BrokerLinks(links)
    try:
        seen = Examination(
            bootstrap,
            time.time_ns() // 1_000_000,
            metadata.cluster_id,
            int(metadata.controller_id) if metadata.controller_id >= 0 else None,
            _with_configs(brokers, seen_brokers),
            _topics(brokers, metadata),
            encrypted=settings.encrypted,
        )
        tell(f"asking for the offsets of {len(seen.partitions)} partitions")
        seen = replace(
            seen,
            logs=_logs(brokers, seen.partitions),
            log_dirs=tuple(_log_dirs(brokers)),
            controller_clock_ms=_controller_clock(brokers),
        )
        seen = _look_twice(seen, brokers, watch_seconds, tell)
        # Last of all: a broker that does not know the question closes the connection.
        seen = replace(seen, background=ask_for_jobs(brokers, seen.brokers))
        seen = with_share_groups(seen, brokers, watch_seconds)
        return replace(seen, unseen=tuple(brokers.unseen))
    finally:
        brokers.close()


def _look_twice(
    seen: Examination, brokers: BrokerLinks, watch_seconds: float, tell: Callable[[str], None]
) -> Examination:
    tell("asking for groups and transactions")
    group_questions = GroupQuestions(brokers)
    transaction_questions = TransactionQuestions(brokers)
    groups = group_questions.groups()
    suspects = transaction_questions.unknown_to_coordinators(seen)
    waiting = group_questions.worth_watching(groups, seen)
    seconds = watch_seconds if waiting else SECOND_LOOK_SECONDS if suspects else 0.0
    if seconds:
        tell(f"watching {len(waiting)} groups and {len(suspects)} transactions for {seconds:g} s")
        time.sleep(seconds)
    if waiting and watch_seconds:
        groups = group_questions.looked_at_again(groups, waiting)
    if suspects:
        suspects = transaction_questions.still_open(suspects)
    return replace(
        seen,
        groups=groups,
        watched_seconds=seconds,
        transactions=transaction_questions.open_transactions(),
        open_producers=suspects,
        now_ms=time.time_ns() // 1_000_000,
    )


def _bootstrap_link(bootstrap: str, settings: ClientSettings) -> Link:
    faults: list[str] = []
    for host, port in settings.bootstrap_servers:
        try:
            return Link.open(host, port, settings)
        except ClientFault as fault:
            faults.append(str(fault))
    raise NotReachable(
        f"no broker of {bootstrap} can be talked to: {'; '.join(faults)}",
        "see that a broker runs there ('tidelog up'), that --bootstrap names it, and that -X"
        " security.protocol "
        "and the sasl.* and ssl.* properties fit its listener",
    )


def _knocked_at(broker: SeenBroker, settings: ClientSettings) -> SeenBroker:
    """Whether a broker that the cluster has given up is there all the same: it may hang."""
    host, _, port = (broker.address or "").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS_MAX).close()
    except OSError:
        return broker
    try:
        link = Link.open(host, int(port), settings)
    except ClientFault:
        return replace(broker, listens=True)
    try:
        ask_metadata(link, ())
    except ClientFault:
        return replace(broker, listens=True)
    finally:
        link.close()
    return replace(broker, listens=True, answers=True)


def _open_links(
    known: Iterable[SeenBroker], settings: ClientSettings
) -> tuple[dict[int, Link], tuple[SeenBroker, ...]]:
    """Connect to every broker that should live, at the same time, where it says it is."""
    links: dict[int, Link] = {}

    def reach(broker: SeenBroker) -> SeenBroker:
        if broker.address is None:
            return broker
        if not broker.alive:
            return _knocked_at(broker, settings)
        host, _, port = broker.address.rpartition(":")
        try:
            link = Link.open(host.strip("[]"), int(port), settings)
        except ClientFault as fault:
            return replace(broker, fault=_without_address(str(fault), broker.address))
        links[broker.id] = link
        try:
            own = ask_metadata(link, ())
        except ClientFault as fault:
            return replace(broker, fault=str(fault))
        return replace(
            broker,
            cluster_id=own.cluster_id,
            versions=link.versions,
            certificate_expires_at=link.certificate_expires_at,
        )

    with ThreadPoolExecutor(LINKS_OPENED_AT_ONCE) as pool:
        seen = tuple(pool.map(reach, known))
    return links, seen


def _without_address(text: str, address: str) -> str:
    for prefix in (f"no connection to {address}: ", f"{address}: "):
        text = text.removeprefix(prefix)
    return text


def _with_configs(brokers: BrokerLinks, seen: tuple[SeenBroker, ...]) -> tuple[SeenBroker, ...]:
    """A broker tells its own settings only, so one that refuses to is another one than we think."""
    found = []
    for broker in seen:
        if broker.id not in brokers.links:
            found.append(broker)
            continue
        keys = (*SHARED_SETTINGS, *STORE_SETTINGS, SETTING_OF_TIDELOG, AUTO_CREATE, NAME_PREFIX)
        rows = _configs(brokers, broker.id, ConfigResource.BROKER, [str(broker.id)], keys)
        code, configs = rows.get(str(broker.id), (ErrorCode.NONE, {}))
        found.append(replace(broker, configs=configs, itself=code is not ErrorCode.INVALID_REQUEST))
    return tuple(found)


def _configs(
    brokers: BrokerLinks, broker: int, kind: ConfigResource, names: list[str], keys: tuple[str, ...]
) -> dict[str, tuple[ErrorCode, dict[str, str | None]]]:
    wanted = {"resource_type": int(kind), "configuration_keys": keys}
    resources = [{**wanted, "resource_name": name} for name in names]
    answer = brokers.ask(broker, DESCRIBE_CONFIGS, {"resources": resources}, "settings", lowest=1, highest=4)
    found: dict[str, tuple[ErrorCode, dict[str, str | None]]] = {}
    for row in () if answer is None else answer.results:
        code = known_code(row.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):
            brokers.unseen[f"settings: {code.name}"] = None
        values = {entry.name: entry.value for entry in row.configs or ()}
        found[str(row.resource_name)] = code, values
    return found


def _topics(brokers: BrokerLinks, metadata: Any) -> tuple[SeenTopic, ...]:
    names = sorted(str(topic.name) for topic in metadata.topics)
    configs: dict[str, tuple[ErrorCode, dict[str, str | None]]] = {}
    for broker in list(brokers.links)[:1]:
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            part = names[start : start + TOPICS_PER_REQUEST]
            configs |= _configs(brokers, broker, ConfigResource.TOPIC, part, TOPIC_SETTINGS)
    eligible = _eligible(brokers, metadata)
    return tuple(
        SeenTopic(
            str(topic.name),
            bool(topic.is_internal),
            tuple(
                SeenPartition(
                    str(topic.name),
                    int(row.partition_index),
                    int(row.leader_id),
                    tuple(int(number) for number in row.replica_nodes),
                    tuple(int(number) for number in row.isr_nodes),
                    tuple(int(number) for number in getattr(row, "offline_replicas", ())),
                    *eligible.get((str(topic.name), int(row.partition_index)), ())[:2],
                )
                for row in topic.partitions
            ),
            configs.get(str(topic.name), (ErrorCode.NONE, {}))[1],
        )
        for topic in sorted(metadata.topics, key=lambda topic: str(topic.name))
    )


def _eligible(brokers: BrokerLinks, metadata: Any) -> dict[Partition, Eligible]:
    """Who may lead next, of the topics that have a partition without a leader."""
    offline = [
        str(topic.name) for topic in metadata.topics if any(row.leader_id < 0 for row in topic.partitions)
    ]
    able = [broker for broker in brokers.links if brokers.offers(broker, DESCRIBE_TOPIC_PARTITIONS)]
    if not offline or not able:
        return {}

    def ask(fields: dict[str, Any]) -> Any:
        return brokers.ask(able[0], DESCRIBE_TOPIC_PARTITIONS, fields, "eligible leaders", highest=0)

    return eligible_leaders(ask, offline)


def _logs(brokers: BrokerLinks, partitions: Iterable[SeenPartition]) -> dict[Partition, LogRange]:
    by_leader: dict[int, list[SeenPartition]] = {}
    for partition in partitions:
        if partition.leader in brokers.links:
            by_leader.setdefault(partition.leader, []).append(partition)
    found: dict[Partition, LogRange] = {}
    for leader, led in by_leader.items():
        # The last stable offset first: what commits in between must not look held up.
        stable = _offsets(brokers, leader, led, LATEST, READ_COMMITTED)
        ends = _offsets(brokers, leader, led, LATEST, READ_UNCOMMITTED)
        starts = _offsets(brokers, leader, led, EARLIEST, READ_UNCOMMITTED)
        newest: dict[Partition, tuple[int, int]] = {}
        if brokers.offers(leader, LIST_OFFSETS, NEWEST_SINCE_VERSION):
            newest = _offsets(brokers, leader, led, NEWEST, READ_UNCOMMITTED)
        for place in starts.keys() & ends.keys() & stable.keys():
            timestamp_ms = newest.get(place, (0, -1))[1]
            found[place] = LogRange(starts[place][0], ends[place][0], stable[place][0], timestamp_ms)
    return dict(sorted(found.items()))


def _offsets(
    brokers: BrokerLinks, leader: int, led: list[SeenPartition], position: int, isolation: int
) -> dict[Partition, tuple[int, int]]:
    """Offset and timestamp of each partition that answers."""
    topics: dict[str, list[dict[str, int]]] = {}
    for partition in led:
        row = {"partition_index": partition.partition, "current_leader_epoch": -1, "timestamp": position}
        topics.setdefault(partition.topic, []).append(row)
    fields = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
    }
    answer = brokers.ask(leader, LIST_OFFSETS, fields, "offsets", lowest=2, highest=7)
    found: dict[Partition, tuple[int, int]] = {}
    for topic in () if answer is None else answer.topics:
        for row in topic.partitions:
            code = known_code(row.error_code)
            if code is ErrorCode.NONE:
                found[str(topic.name), int(row.partition_index)] = int(row.offset), int(row.timestamp)
            else:
                brokers.unseen[f"offsets of topic {topic.name}: {code.name}"] = None
    return found


def _log_dirs(brokers: BrokerLinks) -> Iterable[LogDirView]:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name
    for broker in brokers.links:
        # No topics: the folders alone are wanted, not each replica in them.
        question = partial(describe_at, broker=broker, topics={})
        for folder, _ in brokers.attempt(broker, "log dirs", question) or ():
            if folder.error == denied:
                brokers.unseen[f"log dirs: {denied}"] = None
            else:
                yield folder


def _controller_clock(brokers: BrokerLinks) -> tuple[int, int, int] | None:
    """The controller's own row in the quorum bears the time of its answer (KIP-836)."""
    for broker, link in brokers.links.items():
        if not brokers.offers(broker, DESCRIBE_QUORUM, 1):
            return None
        fields = {"topics": [{"topic_name": QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]}
        before = time.time_ns() // 1_000_000
        try:
            answer = link.request(DESCRIBE_QUORUM, fields, lowest=1, highest=2)
        except ClientFault:
            return None
        after = time.time_ns() // 1_000_000
        if answer.error_code or not answer.topics or not answer.topics[0].partitions:
            return None
        told = answer.topics[0].partitions[0]
        for voter in told.current_voters:
            if voter.replica_id == told.leader_id and int(voter.last_caught_up_timestamp) > 0:
                return before, int(voter.last_caught_up_timestamp), after
        return None
    return None

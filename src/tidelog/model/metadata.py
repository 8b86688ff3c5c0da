"""Metadata records: the durable facts of the cluster, each with the store keys it lives under.

The controller decides in records; a store keeps them; an image is what they add up to. A record names its
writes as `(key, value)`, the value being JSON bytes or None where the key goes away, so that the same record
fits a table and a tree of znodes.

    cluster                     the id of the cluster
    controller-epoch            which broker decided last, and the epoch that fences older ones
    brokers/<id>                a registered broker, alive or not
    topics/<name>               a topic and its id
    partitions/<name>/<index>   the replicas and the leader of a partition
    configs/topics/<name>       what was set for a topic
    configs/brokers/<id>        what was set for a broker; `default` stands for all of them
    configs/groups/<id>         what was set for a group, its id as in a URL
    configs/client-metrics/<name>   a subscription to client metrics, likewise
    producer-ids                the next producer id nobody has
    acls/…, quotas/…            who may do what, and how much of it (see acls, client_quotas)
    users/<name>, tokens/<id>   who may come in (see credentials)

Some keys hold no records. `controller` and `live/<id>` go when the session of their broker does: they say who
decides now, and who is there. `changes` and `changes/<n>` carry the records of the last commits to everybody.

Fields are only ever added: what an older version stored reads as their defaults.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from tidelog.model.acls import ACLS_PREFIX, AclsRecord
from tidelog.model.client_quotas import QUOTAS_PREFIX, QuotasRecord
from tidelog.model.credentials import TOKENS_PREFIX, USERS_PREFIX, TokenRecord, UserRecord
from tidelog.model.identifiers import MIGRATING_DIRECTORY, NO_EPOCH

CLUSTER_KEY = "cluster"
CONTROLLER_EPOCH_KEY = "controller-epoch"
PRODUCER_IDS_KEY = "producer-ids"
# The controller as long as it lives (ephemeral). Before there were clusters, this key held what is now under
# `controller-epoch`; it reads the same.
CONTROLLER_KEY = "controller"
LIVE_PREFIX = "live/"
CHANGES_KEY = "changes"
CHANGES_PREFIX = "changes/"
# The order in which prefixes are loaded: a record never refers to one that comes later.
PREFIXES = (
    CLUSTER_KEY,
    CONTROLLER_KEY,
    CONTROLLER_EPOCH_KEY,
    "brokers/",
    "topics/",
    "partitions/",
    "configs/",
    PRODUCER_IDS_KEY,
    USERS_PREFIX,
    TOKENS_PREFIX,
    ACLS_PREFIX,
    QUOTAS_PREFIX,
)

TOPIC_RESOURCE = "topics"
BROKER_RESOURCE = "brokers"
GROUP_RESOURCE = "groups"
CLIENT_METRICS_RESOURCE = "client-metrics"
# The resource name of the settings of all brokers: DescribeConfigs writes it as an empty name.
ALL_BROKERS = ""
_ALL_BROKERS_KEY = "default"

KeyWrite = tuple[str, bytes | None]


class Endpoint(NamedTuple):
    """Where clients reach a broker on one listener."""

    host: str
    port: int


class ReplicaLogInfo(NamedTuple):
    """Where the log of a replica ends, and the leader epoch of the last batch in it (KIP-966).

    Of two logs that followed the same leaders the larger one has everything committed that the other has.
    """

    last_written_leader_epoch: int
    log_end_offset: int


def _quoted(name: str) -> str:
    """Any text as one part of a key; `.` and `..` have a meaning of their own in a tree of znodes."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def _encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The cluster got its id."""

    cluster_id: str

    def writes(self) -> tuple[KeyWrite, ...]:
        return ((CLUSTER_KEY, _encode({"cluster_id": self.cluster_id})),)


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """A broker became the controller."""

    broker_id: int
    epoch: int

    def writes(self) -> tuple[KeyWrite, ...]:
        return ((CONTROLLER_EPOCH_KEY, _encode({"broker_id": self.broker_id, "epoch": self.epoch})),)


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker registered with its addresses, by listener name, or its state changed.

    `incarnation` is one life of its process, `epoch` the number that the controller gave to that life, larger
    than those of all lives before. `directories` are the ids of its log directories that are online, in the
    order of `log.dirs`; MIGRATING among them says that the broker did not tell all. `offline_directories`
    counts those that it cannot use.
    """

    broker_id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    epoch: int = 0
    incarnation: str = ""
    alive: bool = True
    shutting_down: bool = False
    directories: tuple[str, ...] = ()
    offline_directories: int = 0

    def writes(self) -> tuple[KeyWrite, ...]:
        value = {
            "endpoints": {name: [endpoint.host, endpoint.port] for name, endpoint in self.endpoints.items()},
            "rack": self.rack,
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "alive": self.alive,
            "shutting_down": self.shutting_down,
            "directories": self.directories,
            "offline_directories": self.offline_directories,
        }
        return ((f"brokers/{self.broker_id}", _encode(value)),)


@dataclass(frozen=True, slots=True)
class RemoveBrokerRecord:
    """A broker is gone."""

    broker_id: int

    def writes(self) -> tuple[KeyWrite, ...]:
        return ((f"brokers/{self.broker_id}", None),)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic came to be; its partitions and settings follow as records of their own."""

    name: str
    topic_id: UUID

    def writes(self) -> tuple[KeyWrite, ...]:
        return ((f"topics/{self.name}", _encode({"id": str(self.topic_id)})),)


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic went away with its partitions and settings."""

    name: str
    topic_id: UUID
    partition_count: int
    configured: bool = False

    def writes(self) -> tuple[KeyWrite, ...]:
        partitions = ((f"partitions/{self.name}/{index}", None) for index in range(self.partition_count))
        configs = ((f"configs/{TOPIC_RESOURCE}/{self.name}", None),) if self.configured else ()
        return ((f"topics/{self.name}", None), *partitions, *configs)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The whole state of one partition, new or changed.

    `partition_epoch` grows with every change, `leader_epoch` with those that all replicas must notice:
    another leader, or a replica shut out. While replicas move, `replicas` holds old and new ones, `adding`
    and `removing` say which will come and go. `directories` has the id of the log directory of each replica,
    in their order (KIP-858); none at all stand for MIGRATING ones. A replica whose directory is not among the
    online ones of its broker is offline.

    `elr` are the eligible leader replicas (KIP-966): members that left the ISR while it had fewer than
    `min.insync.replicas`. Nothing is committed as long as there are any, so each has all that is committed.
    `last_known_elr` are those whose machines may have lost the end of the log since. The ISR may be empty;
    who leads next then comes from the ELR, or is the one with the longest log. `replica_logs` is what the
    living replicas of a partition without a leader said of their logs. `unclean_leader_epoch` is the last
    leader epoch that began without a member of the ISR or ELR: what was committed before may be lost.
    """

    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    directories: tuple[str, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    unclean_leader_epoch: int = NO_EPOCH
    replica_logs: tuple[tuple[int, ReplicaLogInfo], ...] = ()

    def writes(self) -> tuple[KeyWrite, ...]:
        value: dict[str, object] = {
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "replicas": self.replicas,
            "isr": self.isr,
            "partition_epoch": self.partition_epoch,
        }
        # Rare facts are written only where they hold: there are many partitions.
        if self.adding:
            value["adding"] = self.adding
        if self.removing:
            value["removing"] = self.removing
        if self.directories:
            value["directories"] = self.directories
        if self.elr:
            value["elr"] = self.elr
        if self.last_known_elr:
            value["last_known_elr"] = self.last_known_elr
        if self.unclean_leader_epoch != NO_EPOCH:
            value["unclean_leader_epoch"] = self.unclean_leader_epoch
        if self.replica_logs:
            value["replica_logs"] = self.replica_logs
        return ((f"partitions/{self.topic}/{self.index}", _encode(value)),)


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """Everything that is now set for a topic, broker, group or subscription to client metrics.

    An empty mapping means nothing is.
    """

    resource: str
    name: str
    configs: Mapping[str, str] = field(default_factory=dict)

    def writes(self) -> tuple[KeyWrite, ...]:
        name = _ALL_BROKERS_KEY if self.name == ALL_BROKERS else self.name
        if self.resource in (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE):
            name = _quoted(name)
        return ((f"configs/{self.resource}/{name}", _encode(self.configs) if self.configs else None),)


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` have been handed out in blocks, the last to `broker_id`."""

    broker_id: int
    next_producer_id: int

    def writes(self) -> tuple[KeyWrite, ...]:
        value = {"broker_id": self.broker_id, "next_producer_id": self.next_producer_id}
        return ((PRODUCER_IDS_KEY, _encode(value)),)


MetadataRecord = (
    ClusterRecord
    | ControllerRecord
    | BrokerRecord
    | RemoveBrokerRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | ConfigRecord
    | ProducerIdsRecord
    | UserRecord
    | TokenRecord
    | AclsRecord
    | QuotasRecord
)


class MetadataCorruptError(ValueError):
    """A stored entry that no version of Tidelog wrote."""


def record_from_entry(key: str, value: bytes) -> MetadataRecord:
    """Read a stored entry back into its record."""
    try:
        return _record_from_fields(key.split("/"), json.loads(value))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise MetadataCorruptError(f"the stored metadata under {key!r} cannot be read: {error!r}") from error


def _record_from_fields(path: list[str], fields: dict[str, object]) -> MetadataRecord:
    # The stored JSON was written by `writes`; a wrong structure surfaces as one of the errors caught above.
    stored: dict[str, object] = dict(fields)
    match path:
        case ["partitions", topic, index]:
            return _partition_record(topic, int(index), stored)
        case ["topics", name]:
            return TopicRecord(name, UUID(str(stored["id"])))
        case ["configs", (("topics" | "brokers") as resource), name]:
            name = ALL_BROKERS if resource == BROKER_RESOURCE and name == _ALL_BROKERS_KEY else name
            return ConfigRecord(resource, name, {key: str(text) for key, text in stored.items()})
        case ["configs", (("groups" | "client-metrics") as resource), name]:
            return ConfigRecord(resource, unquote(name), {key: str(text) for key, text in stored.items()})
        case ["brokers", broker_id]:
            return _broker_record(int(broker_id), stored)
        case ["cluster"]:
            return ClusterRecord(str(stored["cluster_id"]))
        case ["controller" | "controller-epoch"]:
            return ControllerRecord(_integer(stored["broker_id"]), _integer(stored["epoch"]))
        case ["producer-ids"]:
            return ProducerIdsRecord(_integer(stored["broker_id"]), _integer(stored["next_producer_id"]))
        case ["users", name]:
            return UserRecord.from_entry(name, fields)
        case ["tokens", token_id]:
            return TokenRecord.from_entry(token_id, fields)
        case ["acls", kind, way, name]:
            return AclsRecord.from_entry(kind, way, name, fields)
        case ["quotas", *parts]:
            return QuotasRecord.from_entry(parts, stored)
        case _:
            raise ValueError("unknown kind of entry")


def _partition_record(topic: str, index: int, stored: Mapping[str, object]) -> PartitionRecord:
    replicas, isr, elr = (_integers(stored.get(name, [])) for name in ("replicas", "isr", "elr"))
    if stored.get("lost_disk_id"):
        # An older version noted that the last copy could not be reached, and on which disk it was.
        isr, elr = (), elr or isr
    return PartitionRecord(
        topic,
        index,
        _integer(stored["leader"]),
        _integer(stored["leader_epoch"]),
        replicas,
        isr,
        _integer(stored["partition_epoch"]),
        adding=_integers(stored.get("adding", [])),
        removing=_integers(stored.get("removing", [])),
        directories=_partition_directories(stored, replicas, elr),
        elr=elr,
        last_known_elr=_integers(stored.get("last_known_elr", [])),
        unclean_leader_epoch=_integer(stored.get("unclean_leader_epoch", NO_EPOCH)),
        replica_logs=_replica_logs(stored.get("replica_logs", [])),
    )


def _partition_directories(
    stored: Mapping[str, object], replicas: tuple[int, ...], elr: tuple[int, ...]
) -> tuple[str, ...]:
    lost_disk_id = stored.get("lost_disk_id", "")
    if lost_disk_id:
        return tuple(str(lost_disk_id) if replica in elr else MIGRATING_DIRECTORY for replica in replicas)
    directories = _texts(stored.get("directories", []))
    if directories and len(directories) != len(replicas):
        raise ValueError("replicas and directories do not match one to one")
    return directories


def stored_directories(stored: Mapping[str, object]) -> tuple[str, ...]:
    """The directories of a registration; an older version told only the id of the first one."""
    if "directories" in stored:
        return _texts(stored["directories"])
    disk_id = str(stored.get("disk_id", ""))
    return (disk_id, MIGRATING_DIRECTORY) if disk_id else ()


def _broker_record(broker_id: int, stored: Mapping[str, object]) -> BrokerRecord:
    endpoints = stored["endpoints"]
    rack = stored["rack"]
    if not isinstance(endpoints, dict):
        raise TypeError("endpoints is not a mapping")
    return BrokerRecord(
        broker_id,
        {name: Endpoint(str(host), int(port)) for name, (host, port) in endpoints.items()},
        None if rack is None else str(rack),
        _integer(stored.get("epoch", 0)),
        str(stored.get("incarnation", "")),
        bool(stored.get("alive", True)),
        bool(stored.get("shutting_down", False)),
        directories=stored_directories(stored),
        offline_directories=_integer(stored.get("offline_directories", 0)),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(_integer(item) for item in value)


def _replica_logs(value: object) -> tuple[tuple[int, ReplicaLogInfo], ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple((_integer(broker_id), ReplicaLogInfo(*_integers(log))) for broker_id, log in value)


def _texts(value: object) -> tuple[str, ...]:
    """Ids that occur again and again, each kept once."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(sys.intern(str(item)) for item in value)

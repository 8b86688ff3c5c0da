"""The settings of a cluster whose brokers all run on this machine, as values.

Under one data folder:

    cluster.sqlite      the embedded coordination store, shared by all brokers (not with zookeeper.connect)
    cluster.json        what the supervisor says about itself and the brokers (see supervisor)
    cluster.lock        held by the supervisor
    broker-1/           log.dirs of broker 1
    broker-1.log        what broker 1 logged

A cluster of three or more is given three replicas and a minimum of two in sync, where Apache Kafka's own
defaults are one and one: whoever starts several brokers wants to lose one of them without losing anything.
"""

from collections.abc import Mapping
from pathlib import Path

STORE_NAME = "cluster.sqlite"
STATE_NAME = "cluster.json"
LOCK_NAME = "cluster.lock"
REPLICAS_MAX = 3
#: what every broker of a cluster has for itself, so it cannot be set for all of them
OWN_SETTINGS = (
    "node.id",
    "broker.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "broker.rack",
)


def replication_settings(broker_count: int) -> dict[str, str]:
    """How a cluster of this size keeps its topics unless it is told otherwise."""
    replicas = str(min(broker_count, REPLICAS_MAX))
    in_sync = "2" if broker_count >= REPLICAS_MAX else "1"
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def data_folder(data: Path, broker_id: int) -> Path:
    """The log.dirs of a broker."""
    return data / f"broker-{broker_id}"


def log_file(data: Path, broker_id: int) -> Path:
    """Where a broker's log goes."""
    return data / f"broker-{broker_id}.log"


def broker_settings(
    shared: Mapping[str, str],
    *,
    data: Path,
    broker_id: int,
    listeners: str,
    advertised_listeners: str | None = None,
    rack: str | None = None,
) -> dict[str, str]:
    """The settings of one broker: the shared ones and its own."""
    own = {"node.id": str(broker_id), "listeners": listeners, "log.dirs": str(data_folder(data, broker_id))}
    if advertised_listeners is not None:
        own["advertised.listeners"] = advertised_listeners
    if rack is not None:
        own["broker.rack"] = rack
    if "zookeeper.connect" not in shared:
        own["tidelog.coordination.path"] = str(data / STORE_NAME)
    return {**shared, **own}

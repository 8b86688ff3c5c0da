"""Settings of topics, brokers and groups: read with their sources, set and unset."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.client.api_keys import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from tidelog.client.cluster import Cluster
from tidelog.client.faults import UnsupportedVersion
from tidelog.client.link import Link

_SET, _DELETE = 0, 1


class ConfigResource(IntEnum):
    """What has settings; the numbers are the protocol's."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where the value of a setting comes from; the numbers are the protocol's."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigView(NamedTuple):
    """One setting as a broker tells of it."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    #: what would hold if nobody had set anything, as far as the broker tells
    default: str | None


def describe_configs(admin: ClusterAdmin, kind: ConfigResource, name: str) -> list[ConfigView]:
    """Every setting of one topic, broker or group, by name."""
    what = f"the settings of {kind.name.lower()} {name!r} cannot be read"
    resource = {"resource_type": int(kind), "resource_name": name, "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": False}

    def ask(cluster: Cluster) -> list[ConfigView]:
        (row,) = _link(cluster, kind, name).request(DESCRIBE_CONFIGS, fields, lowest=1, highest=4).results
        check(row, what)
        return sorted(_view(entry) for entry in row.configs)

    return admin.asked_once(what, ask)


def alter_configs(
    admin: ClusterAdmin,
    kind: ConfigResource,
    name: str,
    values: Mapping[str, str],
    removed: Sequence[str] = (),
) -> None:
    """Set and unset settings in one request: all of them change, or none does."""
    what = f"the settings of {kind.name.lower()} {name!r} were not changed"
    entries = [
        {"name": setting, "config_operation": _SET, "value": value} for setting, value in values.items()
    ]
    entries += [{"name": setting, "config_operation": _DELETE, "value": None} for setting in removed]
    resource = {"resource_type": int(kind), "resource_name": name, "configs": entries}

    def ask(cluster: Cluster) -> None:
        link = _link(cluster, kind, name)
        fields = {"resources": [resource], "validate_only": False}
        for row in link.request(INCREMENTAL_ALTER_CONFIGS, fields, highest=1).responses:
            check(row, what)

    admin.asked_once(what, ask)


def _link(cluster: Cluster, kind: ConfigResource, name: str) -> Link:
    """A broker tells and takes its own settings only."""
    if kind is not ConfigResource.BROKER:
        return cluster.any_link()
    if not name.isdigit():
        raise UnsupportedVersion(f"{name!r} is no number of a broker")
    return cluster.link_to(int(name))


def _view(entry: Any) -> ConfigView:
    number = int(entry.config_source)
    source = ConfigSource(number) if number in set(ConfigSource) else ConfigSource.UNKNOWN
    return ConfigView(
        str(entry.name),
        entry.value,
        source,
        bool(entry.read_only),
        bool(entry.is_sensitive),
        _default(entry, source),
    )


def _default(entry: Any, source: ConfigSource) -> str | None:
    if source is ConfigSource.DEFAULT:
        return None if entry.value is None else str(entry.value)
    # Synonyms go from the nearest to the farthest place.
    for synonym in reversed(list(entry.synonyms or ())):
        if int(synonym.source) == ConfigSource.DEFAULT and synonym.value is not None:
            # log.retention.hours is a default of retention.ms, in another unit.
            same = str(synonym.name).removeprefix("log.") == entry.name
            return str(synonym.value) if same else f"{synonym.name}={synonym.value}"
    return None

"""Settings of topics and brokers as pages show them."""

from dataclasses import dataclass

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.configs import ConfigResource, ConfigSource, describe_configs

_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "broker (dynamic)",
    ConfigSource.ALL_BROKERS: "cluster (dynamic)",
    ConfigSource.STATIC_BROKER: "broker (start)",
    ConfigSource.DEFAULT: "default",
}


@dataclass(frozen=True, slots=True)
class SettingView:
    """One setting as a broker tells of it."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    default: str | None

    @property
    def overridden(self) -> bool:
        """Whether the resource itself has a value of its own, which can be taken back."""
        return self.source in ("topic", "broker (dynamic)")


def settings_of_topic(admin: ClusterAdmin, name: str) -> list[SettingView]:
    return _settings(admin, ConfigResource.TOPIC, name)


def settings_of_broker(admin: ClusterAdmin, broker_id: int) -> list[SettingView]:
    return _settings(admin, ConfigResource.BROKER, str(broker_id))


def _settings(admin: ClusterAdmin, kind: ConfigResource, name: str) -> list[SettingView]:
    return [
        SettingView(
            entry.name,
            entry.value,
            _SOURCES.get(entry.source, "unknown"),
            entry.read_only,
            entry.sensitive,
            entry.default,
        )
        for entry in describe_configs(admin, kind, name)
    ]

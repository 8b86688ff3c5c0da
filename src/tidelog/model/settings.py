"""Settings as typed values: parsed, checked all at once, and explained.

`BrokerSettings.resolve` turns the texts a person wrote into typed values or raises one `SettingsError` that
lists every fault. A value comes from the first of these that has one: the broker's dynamic settings, the
cluster's dynamic defaults, what the broker was started with, the table. Topic settings come from the topic,
then from their broker synonyms in the same order. The table itself is `settings_table`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import dropwhile
from typing import NamedTuple, cast

from tidelog.model.addresses import address_text
from tidelog.model.delivery_settings import delivery_config_faults
from tidelog.model.log_config import LogConfig
from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS, group_value
from tidelog.model.security_settings import LISTENER_PREFIX, SECURITY_PROTOCOLS, plain_name
from tidelog.model.setting_values import format_value, parse_value
from tidelog.model.settings_table import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    SettingValue,
    UpdateMode,
)

_LISTENER = re.compile(r"([A-Za-z0-9_\-]+)://\[?([0-9A-Za-z\-%._:]*)\]?:([0-9]{1,5})")


class SettingsError(ValueError):
    """Settings that cannot be used; `faults` has one sentence for each thing wrong."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class ConfigSource(IntEnum):
    """Where a value comes from; the number is the one DescribeConfigs sends."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """A value that would count, or does count, for a setting, and where it was set."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Explanation:
    """The effective value of one setting, as text, and everything that could have given it."""

    setting: Setting
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]


#: longer names are near to none
_NAME_LENGTH_MAX = 100
_PARTS_MAX = 10


class Listener(NamedTuple):
    """One address of the broker: `NAME://host:port`; an empty host means every interface."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{address_text(self.host, self.port)}"


def _related(name: str, table: Mapping[str, Setting]) -> list[str]:
    """The names with a part of this one: to compare all takes a tenth of a millisecond, for each bad name."""
    parts = {*name.split(".", _PARTS_MAX)} if len(name) <= _NAME_LENGTH_MAX else set()
    return [known for known in table if not parts.isdisjoint(known.split("."))]


def unknown_setting_fault(name: str, table: Mapping[str, Setting], kind: str) -> str:
    """Say that a name is not in the table, with the nearest name that is."""
    from difflib import get_close_matches  # Imported only for a bad name: it would slow every start.

    related = _related(name, table)
    near = get_close_matches(name, related, n=1, cutoff=0.75) if related else []
    return f"unknown {kind} setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def find_setting(name: str, table: Mapping[str, Setting] = BROKER_SETTINGS) -> Setting | None:
    """The row of a name; a form for one listener has the row of the setting it is a form of."""
    setting = table.get(name)
    if setting is None and table is BROKER_SETTINGS:
        plain = plain_name(name)
        return None if plain is None else replace(table[plain], name=name)
    return setting


def _parse_all(
    texts: Mapping[str, str], table: Mapping[str, Setting], kind: str
) -> tuple[dict[str, SettingValue], list[str]]:
    values: dict[str, SettingValue] = {}
    faults: list[str] = []
    for name, text in texts.items():
        setting = find_setting(name, table)
        if setting is None:
            faults.append(unknown_setting_fault(name, table, kind))
            continue
        try:
            values[name] = parse_value(setting, text)
        except ValueError as fault:
            faults.append(str(fault))
    return values, faults


_THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_THROTTLED_REPLICA = re.compile("([0-9]+:[0-9]+)?")


def topic_config_faults(configs: Mapping[str, str | None], topic: str | None = None) -> list[str]:
    """Say in words everything that is wrong with the settings given to a topic."""
    given = {name: text for name, text in configs.items() if text is not None}
    values, faults = _parse_all(given, TOPIC_SETTINGS, "topic")
    faults += [f"the topic setting {name!r} was given no value" for name in configs if name not in given]
    least = cast(int, values.get("min.compaction.lag.ms", TOPIC_SETTINGS["min.compaction.lag.ms"].default))
    most = cast(int, values.get("max.compaction.lag.ms", TOPIC_SETTINGS["max.compaction.lag.ms"].default))
    if least > most:
        faults.append(f"min.compaction.lag.ms ({least}) must not exceed max.compaction.lag.ms ({most})")
    for name in _THROTTLED_REPLICAS:
        replicas = cast("tuple[str, ...]", values.get(name, ()))
        if replicas != ("*",) and not all(map(_THROTTLED_REPLICA.fullmatch, replicas)):
            faults.append(f"{name} is a list of <partition>:<broker>, or *")
    return faults + delivery_config_faults(topic, values)


def parse_listeners(entries: Iterable[str]) -> tuple[Listener, ...]:
    """Read `NAME://host:port` entries; raise ValueError with a sentence when one cannot be read."""
    listeners = []
    for entry in entries:
        match = _LISTENER.fullmatch(entry)
        if match is None or int(match[3]) > 65_535:
            raise ValueError(f"the listener {entry!r} is not of the form NAME://host:port")
        listeners.append(Listener(match[1].upper(), match[2], int(match[3])))
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise ValueError("two listeners have the same name")
    if not listeners:
        raise ValueError("there must be at least one listener")
    return tuple(listeners)


class BrokerSettings:
    """The typed settings of one broker; immutable, `with_dynamic` makes the next one."""

    def __init__(
        self,
        static: Mapping[str, SettingValue],
        dynamic_default: Mapping[str, SettingValue] | None = None,
        dynamic_own: Mapping[str, SettingValue] | None = None,
    ) -> None:
        self._layers: tuple[tuple[ConfigSource, Mapping[str, SettingValue]], ...] = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, dynamic_own or {}),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dynamic_default or {}),
            (ConfigSource.STATIC_BROKER_CONFIG, static),
        )
        values = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
        for _, layer in reversed(self._layers):
            values.update(layer)
        if values["broker.id"] is None:
            values["broker.id"] = values["node.id"]
        self._values = values

    @classmethod
    def resolve(cls, overrides: Mapping[str, str] | None = None) -> "BrokerSettings":
        """Check and type the settings a broker is started with; raise `SettingsError` with every fault."""
        values, faults = _parse_all(overrides or {}, BROKER_SETTINGS, "broker")
        if "broker.id" in values and values.setdefault("node.id", values["broker.id"]) != values["broker.id"]:
            faults.append("broker.id and node.id are both set and differ")
        settings = cls(values)
        faults += settings._faults()
        if faults:
            raise SettingsError(faults)
        return settings

    def with_dynamic(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> "BrokerSettings":
        """Add settings changed while running; faulty ones are left out, as they were refused before."""
        static = self._layers[-1][1]
        return BrokerSettings(
            static,
            _parse_all(cluster, BROKER_SETTINGS, "broker")[0],
            _parse_all(own, BROKER_SETTINGS, "broker")[0],
        )

    def __repr__(self) -> str:
        changed = ", ".join(
            f"{name}={'hidden' if _row(name).sensitive else format_value(value)}"
            for _, layer in reversed(self._layers)
            for name, value in layer.items()
        )
        return f"<BrokerSettings {changed or 'defaults'}>"

    @property
    def without_effect(self) -> tuple[str, ...]:
        """What the broker was started with that changes nothing here."""
        static = self._layers[-1][1]
        return tuple(
            sorted(name for name, value in static.items() if _row(name).inert and value != _row(name).default)
        )

    def get(self, name: str) -> SettingValue:
        """The typed value of a broker setting; an unknown name is a bug and raises KeyError."""
        return self._values[name]

    def get_int(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int) and not isinstance(value, bool), f"{name} is not a set integer"
        return value

    def get_bool(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), f"{name} is not a boolean"
        return value

    def get_str(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), f"{name} is not a set string"
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        assert isinstance(value, tuple), f"{name} is not a set list"
        return value

    @property
    def node_id(self) -> int:
        return self.get_int("node.id")

    @property
    def rack(self) -> str | None:
        return cast("str | None", self._values["broker.rack"])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data folders: log.dirs, or log.dir when that is not set."""
        return cast("tuple[str, ...] | None", self._values["log.dirs"]) or (self.get_str("log.dir"),)

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        return parse_listeners(self.get_list("listeners"))

    @cached_property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """What clients are told, before an empty host or port 0 is filled in by the server."""
        entries = cast("tuple[str, ...] | None", self._values["advertised.listeners"])
        return parse_listeners(entries) if entries else self.listeners

    @cached_property
    def inter_broker_listener_name(self) -> str:
        """The listener that brokers reach each other by."""
        name = cast("str | None", self._values["inter.broker.listener.name"])
        if name:
            return name.upper()
        return cast("str | None", self._values["security.inter.broker.protocol"]) or self.listeners[0].name

    @cached_property
    def security_protocols(self) -> Mapping[str, str]:
        """The security protocol of each listener name in listener.security.protocol.map."""
        entries = self.get_list("listener.security.protocol.map")
        pairs = (entry.partition(":")[::2] for entry in entries)
        return {name.strip().upper(): protocol.strip().upper() for name, protocol in pairs}

    @property
    def listener_forms(self) -> dict[str, Setting]:
        """The rows of the settings that were set for one listener."""
        return {name: _row(name) for name in self._values if name.startswith(LISTENER_PREFIX)}

    def for_listener(self, listener: str, name: str, mechanism: str = "") -> SettingValue:
        """The value of a setting for one listener, and one SASL mechanism on it."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        if mechanism:
            own = f"{prefix}{mechanism.lower()}.{name}"
            if own in self._values:
                return self._values[own]
        own = prefix + name
        return self._values[own] if own in self._values else self._values[name]

    @cached_property
    def _default_log_config(self) -> LogConfig:
        fields = {_field(name): self._topic_default(setting) for name, setting in TOPIC_SETTINGS.items()}
        return _log_config(fields)

    def log_config(self, topic_configs: Mapping[str, str] | None = None) -> LogConfig:
        """Resolve what one partition log obeys from its topic's settings, which were checked when set."""
        if not topic_configs:
            return self._default_log_config
        fields = {_field(name): self._topic_default(setting) for name, setting in TOPIC_SETTINGS.items()}
        for name, text in topic_configs.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is not None:
                fields[_field(name)] = parse_value(setting, text)
        return _log_config(fields)

    def _topic_default(self, setting: Setting) -> SettingValue:
        """The value a topic gets from the broker: the first synonym that is set, in the topic's unit."""
        for synonym in setting.synonyms:
            value = self._values[synonym.name]
            if value is None:
                continue
            if synonym.factor == 1:
                return value
            assert isinstance(value, int)
            return value * synonym.factor if value >= 0 else -1
        return setting.default

    def explain(self, name: str) -> Explanation:
        """The effective value of a broker setting with its source and everything it overrides."""
        setting = _row(name)
        synonyms = self._synonyms(name, _broker_synonyms(name), setting.sensitive)
        value = self._values[name]
        source = next((item.source for item in synonyms), ConfigSource.DEFAULT_CONFIG)
        return Explanation(setting, None if setting.sensitive else format_value(value), source, synonyms)

    def explain_topic(self, name: str, topic_configs: Mapping[str, str]) -> Explanation:
        """The effective value of a topic setting with its source and everything it overrides."""
        setting = TOPIC_SETTINGS[name]
        names = tuple(synonym.name for synonym in setting.synonyms)
        synonyms = self._synonyms(names[0], names, setting.sensitive) if names else ()
        text = topic_configs.get(name)
        if text is not None:
            shown = format_value(parse_value(setting, text))
            own = ConfigSynonym(name, shown, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            return Explanation(setting, shown, own.source, (own, *synonyms))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        return Explanation(setting, format_value(self._topic_default(setting)), source, synonyms)

    def explain_group(self, name: str, group_configs: Mapping[str, str]) -> Explanation:
        """The value of a group's setting with its source and everything it overrides."""
        setting = GROUP_SETTINGS[name]
        names = tuple(synonym.name for synonym in setting.synonyms)
        if names:
            synonyms = self._synonyms(names[0], names, setting.sensitive)
        else:
            default = ConfigSynonym(name, format_value(setting.default), ConfigSource.DEFAULT_CONFIG)
            synonyms = (default,)
        text = group_configs.get(name)
        if text is not None:
            shown = format_value(parse_value(setting, text))
            own = ConfigSynonym(name, shown, ConfigSource.GROUP_CONFIG)
            return Explanation(setting, shown, own.source, (own, *synonyms))
        value = format_value(group_value(name, {}, self))
        return Explanation(setting, value, synonyms[0].source, synonyms)

    def _synonyms(self, own_name: str, names: tuple[str, ...], sensitive: bool) -> tuple[ConfigSynonym, ...]:
        """Every value of these names, what counts first, from the first one of `own_name` on."""
        found = [
            ConfigSynonym(name, None if sensitive else format_value(layer[name]), source)
            for source, layer in self._layers
            for name in names
            if name in layer
        ]
        for name in names:
            default = BROKER_SETTINGS[name].default if name in BROKER_SETTINGS else None
            if default is not None:
                found.append(
                    ConfigSynonym(
                        name, None if sensitive else format_value(default), ConfigSource.DEFAULT_CONFIG
                    )
                )
        # As Kafka does: nothing before the setting itself, and nothing at all where it has no value.
        return tuple(dropwhile(lambda synonym: synonym.name != own_name, found))

    def _faults(self) -> list[str]:
        """Faults that only show when several settings are looked at together."""
        faults: list[str] = []
        for least, most in _ORDERED:
            if self.get_int(least) > self.get_int(most):
                faults.append(f"{least} ({self.get(least)}) must not exceed {most} ({self.get(most)})")
        queued_bytes_max, request_bytes_max = map(
            self.get_int, ("queued.max.request.bytes", "socket.request.max.bytes")
        )
        if 0 < queued_bytes_max < request_bytes_max:
            faults.append(
                f"queued.max.request.bytes ({queued_bytes_max}) must not be below socket.request.max.bytes "
                f"({request_bytes_max})"
            )
        for name in ("group.consumer.assignors", "group.coordinator.rebalance.protocols"):
            if not self.get_list(name):
                faults.append(f"{name} must not be empty")
        try:
            faults += self._listener_faults()
        except ValueError as fault:
            faults.append(str(fault))
        if any(not directory for directory in self.log_dirs):
            faults.append("log.dirs names an empty folder")
        elif len(set(self.log_dirs)) != len(self.log_dirs):
            faults.append("log.dirs names the same folder twice")
        return faults

    def _security_faults(self, listener: str, protocol: str) -> list[str]:
        faults = []
        keys = ("ssl.keystore.location", "ssl.keystore.key")
        if protocol.endswith("SSL") and not any(self.for_listener(listener, name) for name in keys):
            faults.append(f"the listener {listener} speaks TLS and needs ssl.keystore.location")
        if protocol.startswith("SASL_") and not self.for_listener(listener, "sasl.enabled.mechanisms"):
            faults.append(f"the listener {listener} needs sasl.enabled.mechanisms")
        return faults

    def _listener_faults(self) -> list[str]:
        protocols = self.security_protocols
        faults = []
        for listener in self.listeners:
            protocol = protocols.get(listener.name)
            if protocol is None:
                faults.append(f"the listener {listener.name} is missing in listener.security.protocol.map")
            elif protocol not in SECURITY_PROTOCOLS:
                known = ", ".join(SECURITY_PROTOCOLS)
                faults.append(f"the listener {listener.name} needs {protocol}; {known} are there")
            else:
                faults += self._security_faults(listener.name, protocol)
        names = {listener.name for listener in self.listeners}
        if self._values["inter.broker.listener.name"] and self._values["security.inter.broker.protocol"]:
            faults.append("set inter.broker.listener.name or security.inter.broker.protocol, not both")
        for name in self.listener_forms:
            owner = name[len(LISTENER_PREFIX) :].partition(".")[0].upper()
            if owner not in names:
                faults.append(f"{name} is for the listener {owner}, which is not among listeners")
        if names and self.inter_broker_listener_name not in names:
            faults.append(
                f"inter.broker.listener.name {self.inter_broker_listener_name} is not among listeners"
            )
        for listener in self.advertised_listeners:
            if listener.name not in names:
                faults.append(f"advertised.listeners names {listener.name}, which is not among listeners")
            if self._values["advertised.listeners"] and listener.host in ("", "0.0.0.0", "::"):
                faults.append(f"advertised.listeners must name a host clients can reach, not {listener}")
        return faults


_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
_BROKER_SYNONYMS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("node.id", "broker.id"),
)


def explain_client_metrics(name: str, configs: Mapping[str, str]) -> Explanation:
    """The value of a setting of a subscription to client metrics."""
    setting = CLIENT_METRICS_SETTINGS[name]
    text = configs.get(name)
    if text is None:
        return Explanation(setting, format_value(setting.default), ConfigSource.DEFAULT_CONFIG, ())
    own = ConfigSynonym(name, text, ConfigSource.CLIENT_METRICS_CONFIG)
    return Explanation(setting, text, own.source, (own,))


def _broker_synonyms(name: str) -> tuple[str, ...]:
    plain = plain_name(name)
    if plain is not None:
        return (name, plain)
    return next((names for names in _BROKER_SYNONYMS if name in names), (name,))


def _row(name: str) -> Setting:
    setting = find_setting(name)
    assert setting is not None, f"{name} is not a setting"
    return setting


def broker_config_faults(configs: Mapping[str, str], *, cluster_wide: bool) -> list[str]:
    """Say what is wrong with changing these settings of a running broker, or of all brokers."""
    values, faults = _parse_all(configs, BROKER_SETTINGS, "broker")
    for name in values:
        mode = _row(name).update_mode
        if mode is UpdateMode.READ_ONLY:
            faults.append(f"{name} cannot be changed while the broker runs")
        elif mode is UpdateMode.PER_BROKER and cluster_wide:
            faults.append(f"{name} can only be changed for one broker")
    return faults


_LOG_CONFIG_FIELDS = frozenset(LogConfig.__dataclass_fields__)


def _field(name: str) -> str:
    return name.replace(".", "_")


def _log_config(fields: Mapping[str, SettingValue]) -> LogConfig:
    known: dict[str, object] = {name: value for name, value in fields.items() if name in _LOG_CONFIG_FIELDS}
    known["cleanup_policy"] = frozenset(cast("tuple[str, ...]", fields["cleanup_policy"]))
    return LogConfig(**known)  # type: ignore[arg-type]

"""Every documented setting of Apache Kafka 4.3.1 is known here: it works, is noted, or is refused.

`kafka_settings.tsv` is what Kafka's own classes say (tests/conformance/java/KafkaSettings.java writes it).
Where a type or a default differs, it says so below, and docs/compatibility.md does.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.setting_rows import Setting, UpdateMode
from tidelog.model.setting_values import format_value, parse_value
from tidelog.model.settings import BrokerSettings, SettingsError
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

TABLES = {
    "broker": BROKER_SETTINGS,
    "topic": TOPIC_SETTINGS,
    "group": GROUP_SETTINGS,
    "client-metrics": CLIENT_METRICS_SETTINGS,
}

#: defaults that differ on purpose
OTHER_DEFAULTS = {
    "background.threads",
    "broker.id",
    "group.coordinator.rebalance.protocols",
    "listener.security.protocol.map",
    "log.dir",
    "node.id",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "security.inter.broker.protocol",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.keystore.type",
    "ssl.truststore.type",
}
#: types that differ; each reads the same texts
OTHER_TYPES = {
    "leader.imbalance.check.interval.seconds",
    "listener.security.protocol.map",
    "log.dir",
    "max.connections.per.ip.overrides",
}
#: settings that change while a broker of Kafka runs, and only with a restart here
READ_ONLY_HERE = {
    "background.threads",
    "listener.security.protocol.map",
    "listeners",
    "max.connections.per.ip.overrides",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
}
#: replicas are throttled by what is set for the brokers concerned
OTHER_MODES = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}


class KafkaSetting(NamedTuple):
    kind: str
    name: str
    type: str
    default: str | None
    importance: str
    valid: str
    mode: str


def kafka_settings() -> list[KafkaSetting]:
    lines = (Path(__file__).with_name("kafka_settings.tsv")).read_text().splitlines()
    rows = [KafkaSetting(*line.split("\t")) for line in lines]
    return [row._replace(default=None if row.default == "null" else row.default) for row in rows]


DOCUMENTED = [row for row in kafka_settings() if row.mode != "internal"]


def ours(row: KafkaSetting) -> Setting:
    return TABLES[row.kind][row.name]


KNOWN = [row for row in DOCUMENTED if row.name in TABLES[row.kind]]


def test_every_setting_of_kafka_is_in_the_table() -> None:
    assert len(DOCUMENTED) > 390
    assert [row.name for row in DOCUMENTED if row.name not in TABLES[row.kind]] == []


def test_types_and_defaults_are_kafkas() -> None:
    types = {row.name for row in KNOWN if ours(row).type.name != row.type}
    defaults = {row.name for row in KNOWN if format_value(ours(row).default) != row.default}
    assert types == OTHER_TYPES
    assert defaults == OTHER_DEFAULTS


def test_they_change_while_running_as_in_kafka_or_not_at_all() -> None:
    brokers = [row for row in KNOWN if row.kind == "broker"]
    differing = {row.name for row in brokers if ours(row).update_mode.value != (row.mode or "read-only")}
    assert differing - OTHER_MODES == READ_ONLY_HERE
    assert all(BROKER_SETTINGS[name].update_mode is UpdateMode.READ_ONLY for name in READ_ONLY_HERE)


@pytest.mark.parametrize("row", [row for row in KNOWN if ours(row).inert], ids=lambda row: row.name)
def test_what_has_no_effect_is_noted_or_refused(row: KafkaSetting) -> None:
    """The default is taken; another value is taken and told of at the start, or refused with a reason."""
    setting = ours(row)
    if row.default is not None:
        assert parse_value(setting, row.default if row.name not in OTHER_DEFAULTS else "true") is not None
    other = _another(setting)
    if setting.refused:
        with pytest.raises(ValueError, match="cannot be set") as refusal:
            parse_value(setting, other)
        assert setting.refused in str(refusal.value)
        return
    parse_value(setting, other)
    if row.kind == "broker":
        assert BrokerSettings.resolve({row.name: other}).without_effect == (row.name,)


def _another(setting: Setting) -> str:
    """A legal value that is not the default."""
    present = format_value(setting.default)
    if setting.choices:
        return next(str(choice) for choice in setting.choices if str(choice) != present)
    match setting.type.name:
        case "BOOLEAN":
            return "false" if setting.default else "true"
        case "INT" | "LONG" | "SHORT":
            number = setting.default if isinstance(setting.default, int) else 1
            above = setting.maximum is not None and number + 1 > setting.maximum
            return str(number - 1 if above or number >= 2**31 - 1 else number + 1)
        case "DOUBLE":
            return "0.5"
        case _:
            return "com.example.Anything"


def test_internal_settings_of_kafka_stay_unknown() -> None:
    internal = [row.name for row in kafka_settings() if row.mode == "internal" and row.kind == "broker"]
    taken = {name for name in internal if name in BROKER_SETTINGS}
    assert taken == {"producer.id.expiration.check.interval.ms"}
    with pytest.raises(SettingsError, match="unknown broker setting"):
        BrokerSettings.resolve({"unstable.api.versions.enable": "true"})

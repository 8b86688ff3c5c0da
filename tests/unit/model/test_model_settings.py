"""Settings: typing, refusal with every fault, layers, synonyms, and the resolved log config."""

import pytest

from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.model.setting_values import format_value, parse_value
from tidelog.model.settings import (
    BrokerSettings,
    ConfigSource,
    Listener,
    SettingsError,
    broker_config_faults,
    topic_config_faults,
)
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, SettingType


def test_table_defaults_are_the_defaults_of_a_log() -> None:
    assert BrokerSettings.resolve().log_config() == LogConfig()


@pytest.mark.parametrize("setting", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=repr)
def test_every_default_passes_its_own_check(setting: Setting) -> None:
    text = format_value(setting.default)
    if text is not None:
        assert parse_value(setting, text) == setting.default
    assert setting.documentation.endswith(".")


def test_every_topic_synonym_is_a_broker_setting_of_the_same_meaning() -> None:
    settings = BrokerSettings.resolve()
    for name, setting in TOPIC_SETTINGS.items():
        for synonym in setting.synonyms:
            assert synonym.name in BROKER_SETTINGS
        assert settings.explain_topic(name, {}).value == format_value(setting.default)


def test_every_field_of_log_config_is_a_topic_setting() -> None:
    names = {name.replace(".", "_") for name in TOPIC_SETTINGS}
    assert set(LogConfig.__dataclass_fields__) <= names


def test_all_faults_are_listed_at_once_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError) as raised:
        BrokerSettings.resolve(
            {"num.partition": "4", "node.id": "-1", "fetch.max.bytes": "many", "listeners": "PLAINTEXT//x"}
        )
    faults = raised.value.faults
    assert "unknown broker setting 'num.partition'; did you mean 'num.partitions'?" in faults
    assert "node.id must be at least 0, not -1" in faults
    assert "fetch.max.bytes must be a whole number, not 'many'" in faults
    assert any("PLAINTEXT//x" in fault for fault in faults)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delete.topic.enable", "yes"),
        ("message.max.bytes", "99999999999"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleaner.min.cleanable.ratio", "1.5"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("log.cleanup.policy", "delete,shred"),
        ("log.cleanup.policy", "delete,"),
        ("remote.log.storage.system.enable", "true"),
        ("process.roles", "broker"),
        ("authorizer.class.name", "com.example.Authorizer"),
        ("ssl.keystore.password", "secret"),
        ("num.io.threads", "0"),
        ("offsets.topic.replication.factor", "40000"),
        ("listeners", "SSL://:9092"),
        ("listeners", "PLAINTEXT://:9092,PLAINTEXT://:9093"),
        ("listeners", "PLAINTEXT://:70000"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092"),
        ("advertised.listeners", "OTHER://host:9092"),
        ("group.min.session.timeout.ms", "1900000"),
        ("log.dirs", "a,a"),
        ("log.dirs", "a,,b"),
        ("broker.id", "2147483648"),
    ],
)
def test_bad_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError):
        BrokerSettings.resolve({name: text})


def test_broker_id_is_node_id() -> None:
    assert BrokerSettings.resolve({"broker.id": "7"}).node_id == 7
    assert BrokerSettings.resolve({"node.id": "7"}).get_int("broker.id") == 7
    with pytest.raises(SettingsError, match="differ"):
        BrokerSettings.resolve({"broker.id": "7", "node.id": "8"})


def test_listeners_are_parsed() -> None:
    settings = BrokerSettings.resolve(
        {
            "listeners": "PLAINTEXT://:9092,internal://[::1]:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://example.org:9092",
        }
    )
    assert settings.listeners == (Listener("PLAINTEXT", "", 9092), Listener("INTERNAL", "::1", 0))
    assert settings.advertised_listeners == (Listener("PLAINTEXT", "example.org", 9092),)
    assert str(settings.listeners[1]) == "INTERNAL://[::1]:0"


def test_log_dirs_take_precedence_over_log_dir() -> None:
    assert BrokerSettings.resolve({"log.dir": "/a"}).log_dirs == ("/a",)
    assert BrokerSettings.resolve({"log.dir": "/a", "log.dirs": "/b, /c"}).log_dirs == ("/b", "/c")


@pytest.mark.parametrize(
    ("overrides", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_takes_the_finest_unit_that_is_set(overrides: dict[str, str], retention_ms: int) -> None:
    settings = BrokerSettings.resolve(overrides)
    assert settings.log_config().retention_ms == retention_ms
    assert settings.log_config({"retention.ms": "77"}).retention_ms == 77


def test_flush_settings_reach_the_log() -> None:
    settings = BrokerSettings.resolve(
        {"log.flush.interval.messages": "1", "log.flush.scheduler.interval.ms": "9"}
    )
    assert (settings.log_config().flush_messages, settings.log_config().flush_ms) == (1, 9)
    assert settings.log_config({"flush.ms": "3"}).flush_ms == 3


def test_explain_names_the_source_and_what_it_overrides() -> None:
    settings = BrokerSettings.resolve({"log.retention.minutes": "5"}).with_dynamic(
        {"log.retention.ms": "1000"}, {"log.retention.ms": "2000"}
    )
    topic = settings.explain_topic("retention.ms", {"retention.ms": "3000"})
    assert (topic.value, topic.source) == ("3000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(item.name, item.value, item.source) for item in topic.synonyms] == [
        ("retention.ms", "3000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "2000", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "1000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.minutes", "5", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]
    assert settings.log_config().retention_ms == 2000
    untouched = settings.explain("num.partitions")
    assert (untouched.value, untouched.source) == ("1", ConfigSource.DEFAULT_CONFIG)


def test_memory_for_requests_holds_one_of_the_largest() -> None:
    for value in ("-1", "0", "1000"):
        BrokerSettings.resolve({"queued.max.request.bytes": value, "socket.request.max.bytes": "1000"})
    with pytest.raises(SettingsError, match=r"queued\.max\.request\.bytes \(999\) must not be below socket"):
        BrokerSettings.resolve({"queued.max.request.bytes": "999", "socket.request.max.bytes": "1000"})


def test_topic_faults() -> None:
    assert topic_config_faults({"cleanup.policy": "compact", "retention.ms": "-1"}) == []
    assert topic_config_faults({"remote.storage.enable": "false"}) == []
    assert topic_config_faults({"retention.mss": "1"}) == [
        "unknown topic setting 'retention.mss'; did you mean 'retention.ms'?"
    ]
    [fault] = topic_config_faults({"remote.storage.enable": "true"})
    assert "there is no remote storage" in fault
    [fault] = topic_config_faults({"segment.ms": None})
    assert "no value" in fault
    [fault] = topic_config_faults({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    assert "must not exceed" in fault
    assert len(topic_config_faults({"cleanup.policy": "delete,", "segment.bytes": "1"})) == 2


def test_neither_deleted_nor_compacted() -> None:
    """An empty policy keeps everything, as in Kafka 4."""
    assert topic_config_faults({"cleanup.policy": ""}) == []
    config = BrokerSettings.resolve({}).log_config({"cleanup.policy": ""})
    assert not config.deletes and not config.compacted
    for broker_wide in ("", "compact"):
        settings = BrokerSettings.resolve({"log.cleanup.policy": broker_wide})
        assert settings.log_config().compacted is bool(broker_wide)
        assert not settings.log_config().deletes
        assert settings.log_config({"cleanup.policy": "delete"}).deletes


def test_what_has_no_effect_is_taken_and_told() -> None:
    settings = BrokerSettings.resolve({"num.io.threads": "4", "num.network.threads": "3", "node.id": "2"})
    assert settings.without_effect == ("num.io.threads",)
    assert settings.explain("num.io.threads").value == "4"
    with pytest.raises(SettingsError, match="there is no KRaft quorum here"):
        BrokerSettings.resolve({"controller.quorum.voters": "1@localhost:9093"})


def test_only_dynamic_broker_settings_may_change() -> None:
    assert broker_config_faults({"log.retention.ms": "1"}, cluster_wide=True) == []
    [fault] = broker_config_faults({"node.id": "1"}, cluster_wide=False)
    assert "cannot be changed" in fault


def test_typed_getters_refuse_the_wrong_type() -> None:
    settings = BrokerSettings.resolve()
    assert settings.get_int("num.partitions") == 1
    assert settings.get_bool("delete.topic.enable") is True
    assert settings.get_list("group.consumer.assignors") == ("uniform", "range")
    assert settings.get_int("log.flush.scheduler.interval.ms") == INT64_MAX
    with pytest.raises(AssertionError):
        settings.get_int("delete.topic.enable")
    with pytest.raises(KeyError):
        settings.get("no.such.setting")
    assert TOPIC_SETTINGS["retention.ms"].type is SettingType.LONG


def test_the_settings_of_a_delay_topic_fit_each_other() -> None:
    target = {"tidelog.delay.target": "orders"}
    assert topic_config_faults({**target, "tidelog.delay.ms": "5000"}, "later") == []
    [fault] = topic_config_faults(target, "orders")
    assert "another topic" in fault
    [fault] = topic_config_faults({"tidelog.delay.target": "a b"}, "later")
    assert "a b" in fault
    [fault] = topic_config_faults({"tidelog.delay.target": "__consumer_offsets"}, "later")
    assert "internal" in fault
    [fault] = topic_config_faults({**target, "cleanup.policy": "compact"}, "later")
    assert "compacted" in fault
    [fault] = topic_config_faults({**target, "tidelog.delay.ms": "2", "tidelog.delay.max.ms": "1"}, "later")
    assert "must not exceed" in fault
    assert topic_config_faults({"tidelog.delay.target": "", "cleanup.policy": "compact"}, "later") == []

"""Settings of groups, client metrics and loggers: altered, described, listed, kept, and heeded."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kio.static.primitive import i8

from tests.unit.broker.test_broker_authorization import GuardedNode
from tests.unit.broker.test_broker_metadata_handlers import Node, body, change, describe, resource, versions
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import ConfigRecord, record_from_entry

CLIENT_METRICS, GROUP, LOGGER = 16, 32, 8
SET, DELETE, APPEND = 0, 1, 2
LOGGER_NAME = "tidelog.broker.requests.dispatch"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("tidelog"), logging.getLogger(LOGGER_NAME)]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def alter(node: Node, *resources: SimpleNamespace, validate_only: bool = False) -> list[ErrorCode]:
    request = body(resources=resources, validate_only=validate_only)
    answer = node.ask("incremental_alter_configs", 1, request)
    return [ErrorCode(int(item.error_code)) for item in answer.responses]


def described(node: Node, kind: int, name: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    request = body(resources=(describe(kind, name, keys),), include_synonyms=True, include_documentation=True)
    [result] = node.ask("describe_configs", 4, request).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def synonyms(config: Any) -> list[tuple[str, str, int]]:
    return [(item.name, item.value, item.source) for item in config.synonyms]


def listed(node: Node, *kinds: int) -> list[tuple[int, str]]:
    answer = node.ask("list_config_resources", 1, body(resource_types=tuple(map(i8, kinds))))
    return [(item.resource_type, item.resource_name) for item in answer.config_resources]


def test_a_group_has_settings_before_it_has_members() -> None:
    node = Node(group_consumer_session_timeout_ms="50000")
    session = "consumer.session.timeout.ms"
    assert alter(node, resource(GROUP, "g", change(session, SET, "46000"))) == [ErrorCode.NONE]
    own = described(node, GROUP, "g")
    assert (own[session].value, own[session].config_source) == ("46000", 8)
    assert synonyms(own[session]) == [
        ("consumer.session.timeout.ms", "46000", 8),
        ("group.consumer.session.timeout.ms", "50000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    other = described(node, GROUP, "nobody", (session,))[session]
    assert (other.value, other.config_source) == ("50000", 4)
    reset = own["share.auto.offset.reset"]
    assert (reset.value, synonyms(reset)) == ("latest", [("share.auto.offset.reset", "latest", 5)])
    assert listed(node, GROUP) == [(GROUP, "g")]
    assert alter(node, resource(GROUP, "g", change(session, DELETE, None))) == [ErrorCode.NONE]
    assert listed(node, GROUP) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.session.timeout.ms", "soon"),
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.heartbeat.interval.ms", "15001"),
        ("consumer.assignment.interval.ms", "15001"),
        ("share.auto.offset.reset", "by_duration:an hour"),
        ("share.delivery.count.limit", "11"),
        ("streams.num.standby.replicas", "3"),
        ("session.timeout.ms", "46000"),
    ],
)
def test_settings_of_a_group_that_cannot_be(name: str, value: str) -> None:
    node = Node()
    assert alter(node, resource(GROUP, "g", change(name, SET, value))) == [ErrorCode.INVALID_CONFIG]
    assert node.image.group_configs == {}


def test_a_session_is_longer_than_a_heartbeat() -> None:
    node = Node(
        group_consumer_min_session_timeout_ms="1000", group_consumer_max_heartbeat_interval_ms="15000"
    )
    both = (
        change("consumer.session.timeout.ms", SET, "9000"),
        change("consumer.heartbeat.interval.ms", SET, "9000"),
    )
    assert alter(node, resource(GROUP, "g", *both)) == [ErrorCode.INVALID_CONFIG]
    assert alter(node, resource(GROUP, "g", both[0])) == [ErrorCode.NONE]
    assert alter(node, resource(GROUP, "g", both[1])) == [ErrorCode.INVALID_CONFIG]


def test_groups_and_subscriptions_have_names_and_no_lists() -> None:
    node = Node()
    rows = (
        resource(GROUP, "", change("consumer.session.timeout.ms", SET, "46000")),
        resource(CLIENT_METRICS, "", change("metrics", SET, "a")),
        resource(GROUP, "g", change("consumer.session.timeout.ms", APPEND, "1")),
        resource(CLIENT_METRICS, "s", change("metrics", APPEND, "a")),
        resource(GROUP, "h", change("nonsense", DELETE, None)),
    )
    codes = [ErrorCode.INVALID_REQUEST] * 2 + [ErrorCode.INVALID_CONFIG] * 2 + [ErrorCode.NONE]
    assert alter(node, *rows) == codes


@pytest.mark.parametrize("version", versions("alter_configs"))
def test_all_settings_of_a_group_are_replaced(version: int) -> None:
    node = Node()
    alter(node, resource(GROUP, "g", change("consumer.session.timeout.ms", SET, "46000")))
    rows = (
        resource(GROUP, "g", body(name="consumer.heartbeat.interval.ms", value="6000")),
        resource(CLIENT_METRICS, "s", body(name="interval.ms", value="100")),
        resource(CLIENT_METRICS, "t", body(name="interval", value="100")),
    )
    answer = node.ask("alter_configs", version, body(resources=rows, validate_only=False))
    assert [item.error_code for item in answer.responses] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert node.image.group_configs == {"g": {"consumer.heartbeat.interval.ms": "6000"}}
    assert node.image.client_metrics == {"s": {"interval.ms": "100"}}


def test_a_subscription_to_client_metrics_is_kept_and_shown() -> None:
    node = Node()
    rows = (
        change("metrics", SET, "org.apache.kafka.producer."),
        change("match", SET, "client_id=a.*,client_software_name=librdkafka"),
    )
    assert alter(node, resource(CLIENT_METRICS, "s", *rows)) == [ErrorCode.NONE]
    shown = described(node, CLIENT_METRICS, "s")
    assert (shown["metrics"].value, shown["metrics"].config_source) == ("org.apache.kafka.producer.", 7)
    assert (shown["interval.ms"].value, shown["interval.ms"].config_source) == ("300000", 5)
    assert synonyms(shown["interval.ms"]) == []
    assert set(described(node, CLIENT_METRICS, "nobody")) == {"metrics", "interval.ms", "match"}
    assert listed(node, CLIENT_METRICS) == [(CLIENT_METRICS, "s")]
    [old] = node.ask("list_config_resources", 0, body()).config_resources
    assert old.resource_name == "s"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST),
        ("interval.ms", "soon", ErrorCode.INVALID_CONFIG),
        ("match", "client_name=a", ErrorCode.INVALID_CONFIG),
        ("match", "client_id", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=(", ErrorCode.INVALID_CONFIG),
        ("nonsense", "a", ErrorCode.INVALID_REQUEST),
    ],
)
def test_subscriptions_that_cannot_be(name: str, value: str, code: ErrorCode) -> None:
    assert alter(Node(), resource(CLIENT_METRICS, "s", change(name, SET, value))) == [code]


def test_levels_of_loggers_change_at_once_and_are_kept_nowhere() -> None:
    node = Node()
    logger = logging.getLogger(LOGGER_NAME)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("tidelog").setLevel(logging.NOTSET)
    logger.setLevel(logging.NOTSET)
    shown = described(node, LOGGER, "1")
    assert (shown["root"].value, shown[LOGGER_NAME].value) == ("WARN", "WARN")
    assert shown["root"].config_source == 6 and not shown["root"].read_only
    records = node.image
    assert alter(node, resource(LOGGER, "1", change(LOGGER_NAME, SET, "DEBUG"))) == [ErrorCode.NONE]
    assert logger.isEnabledFor(logging.DEBUG) and not logging.getLogger("tidelog").isEnabledFor(logging.INFO)
    assert described(node, LOGGER, "1", (LOGGER_NAME,))[LOGGER_NAME].value == "DEBUG"
    assert alter(node, resource(LOGGER, "1", change("tidelog", SET, "ERROR"))) == [ErrorCode.NONE]
    assert alter(node, resource(LOGGER, "1", change(LOGGER_NAME, DELETE, None))) == [ErrorCode.NONE]
    assert logger.getEffectiveLevel() == logging.ERROR
    tried = resource(LOGGER, "1", change("root", SET, "TRACE"))
    assert alter(node, tried, validate_only=True) == [ErrorCode.NONE]
    assert logging.getLogger().level == logging.WARNING
    assert node.image is records


@pytest.mark.parametrize(
    ("name", "setting", "operation", "value", "code"),
    [
        ("1", "root", SET, "debug", ErrorCode.INVALID_CONFIG),
        ("1", "no.such.logger", SET, "DEBUG", ErrorCode.INVALID_CONFIG),
        ("1", "root", DELETE, None, ErrorCode.INVALID_REQUEST),
        ("1", "root", APPEND, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("1", "root", 9, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("1", "root", SET, None, ErrorCode.INVALID_REQUEST),
        ("2", "root", SET, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("", "root", SET, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("x", "root", SET, "DEBUG", ErrorCode.INVALID_REQUEST),
    ],
)
def test_levels_that_cannot_be(name: str, setting: str, operation: int, value: Any, code: ErrorCode) -> None:
    """All changes of a request are made, or none."""
    level = logging.getLogger("tidelog").level
    changes = (change("tidelog", SET, "TRACE"), change(setting, operation, value))
    assert alter(Node(), resource(LOGGER, name, *changes)) == [code]
    assert logging.getLogger("tidelog").level == level


def test_the_same_loggers_twice() -> None:
    rows = [resource(LOGGER, "1", change("tidelog", SET, level)) for level in ("INFO", "WARN")]
    assert alter(Node(), *rows) == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize("name", ["g", ".", "..", "a/b", "äö %2F", "default", "x" * 300])
def test_any_name_is_one_key(name: str) -> None:
    """Group ids may have anything in them; the store's keys are parts between slashes."""
    for kind in ("groups", "client-metrics"):
        record = ConfigRecord(kind, name, {"a": "b"})
        [(key, value)] = record.writes()
        assert key.count("/") == 2 and not key.endswith(("/.", "/.."))
        assert value is not None and record_from_entry(key, value) == record
        image = ClusterImage().apply([record])
        assert (image.group_configs if kind == "groups" else image.client_metrics) == {name: {"a": "b"}}
        assert not image.apply([ConfigRecord(kind, name)]).group_configs


def test_who_may_touch_which_settings() -> None:
    """Those of a group are the group's, those of loggers and client metrics the cluster's."""
    node = GuardedNode()
    node.allow("app", AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, "mine")
    node.allow("app", AclOperation.ALTER_CONFIGS, ResourceType.GROUP, "mine")
    node.allow("operator", AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    node.allow("operator", AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    level = logging.getLogger("tidelog").level
    rows = (
        (GROUP, "mine", "consumer.session.timeout.ms", "46000"),
        (GROUP, "other", "consumer.session.timeout.ms", "46000"),
        (CLIENT_METRICS, "s", "interval.ms", "1000"),
        (LOGGER, "1", "tidelog", "ERROR"),
    )
    group, cluster = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for user, expected in (
        ("nobody", [group, group, cluster, cluster]),
        ("app", [ErrorCode.NONE, group, cluster, cluster]),
        ("operator", [group, group, ErrorCode.NONE, ErrorCode.NONE]),
    ):
        node.be(user)
        found: dict[str, list[ErrorCode]] = {"alter": [], "describe": []}
        for kind, name, setting, value in rows:
            config = {"name": setting, "config_operation": SET, "value": value}
            altered = {"resource_type": kind, "resource_name": name, "configs": [config]}
            answer = node.call("IncrementalAlterConfigs", 1, {"resources": [altered]})
            found["alter"].append(ErrorCode(int(answer.responses[0].error_code)))
            asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            shown = node.call("DescribeConfigs", 4, {"resources": [asked]}).results[0]
            found["describe"].append(ErrorCode(int(shown.error_code)))
            assert not shown.configs or shown.error_code == 0
        assert found == {"alter": expected, "describe": expected}, user
        listing = node.call("ListConfigResources", 1, {"resource_types": []})
        assert ErrorCode(int(listing.error_code)) is (ErrorCode.NONE if user == "operator" else cluster)
        assert (logging.getLogger("tidelog").level == level) is (user != "operator")

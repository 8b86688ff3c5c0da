"""The settings of groups and of subscriptions to client metrics, which have resources of their own.

A group (KIP-848) has the new protocol's session timeout and heartbeat interval: they hold instead of the
broker's `group.consumer.*`, within its bounds, from the next heartbeat on. A share group (KIP-932) has how
its records are delivered as well, instead of the broker's `group.share.*`. Settings of streams groups are
kept and shown; there are no such groups here.

A subscription to client metrics (KIP-714) says which clients shall push which metrics how often. It is kept
and shown, and nobody pushes: the telemetry APIs are not offered.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import topic_name_fault
from tidelog.model.setting_rows import Scope, Setting, SettingType, SettingValue, Synonym, topic_setting
from tidelog.model.setting_values import parse_value

if TYPE_CHECKING:
    from tidelog.model.settings import BrokerSettings

_INT, _STRING, _BOOLEAN, _LIST = SettingType.INT, SettingType.STRING, SettingType.BOOLEAN, SettingType.LIST

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"


class Bounds(NamedTuple):
    """The broker settings that a group's setting lies between."""

    least: str = ""
    most: str = ""


def _group(
    name: str,
    default: SettingValue,
    documentation: str,
    *,
    type: SettingType = _INT,
    minimum: int | None = None,
    choices: tuple[str | int, ...] = (),
    broker: bool = True,
    inert: bool = True,
) -> Setting:
    synonyms = (Synonym(f"group.{name}"),) if broker else ()
    return topic_setting(
        name, type, default, documentation, *synonyms,
        minimum=minimum, choices=choices, inert=inert, scope=Scope.GROUP,
    )  # fmt: skip


_GROUP_ROWS = (
    _group(
        SESSION_TIMEOUT, 45_000, "After how long without a heartbeat a consumer leaves the group.",
        minimum=1, inert=False,
    ),
    _group(HEARTBEAT_INTERVAL, 5_000, "How often a consumer sends a heartbeat.", minimum=1, inert=False),
    _group(
        "consumer.assignment.interval.ms", 1_000,
        "How long to wait between two assignments; here each change is assigned at once.", minimum=0,
    ),
    _group(
        "share.session.timeout.ms", 45_000,
        "After how long without a heartbeat a member leaves a share group.", minimum=1, inert=False,
    ),
    _group(
        "share.heartbeat.interval.ms", 5_000, "How often a member of a share group sends a heartbeat.",
        minimum=1, inert=False,
    ),
    _group(
        "share.assignment.interval.ms", 1_000,
        "How long a share group waits between two assignments; here each change is assigned at once.",
        minimum=0,
    ),
    _group(
        "share.record.lock.duration.ms", 30_000,
        "How long a member of a share group has a record for itself.", minimum=1_000, inert=False,
    ),
    _group(
        "share.delivery.count.limit", 5, "How often a share group delivers a record before it is given up.",
        minimum=2, inert=False,
    ),
    _group(
        "share.partition.max.record.locks", 2_000,
        "How many records of a partition a share group may have in flight.", minimum=100, inert=False,
    ),
    _group(
        "share.auto.offset.reset", "latest",
        "Where a share group begins: earliest, latest, or by_duration and how long ago.",
        type=_STRING, broker=False, inert=False,
    ),
    _group(
        "share.isolation.level", "read_uncommitted", "What a share group reads of transactions.",
        type=_STRING, choices=("read_committed", "read_uncommitted"), broker=False, inert=False,
    ),
    _group(
        "share.renew.acknowledge.enable", True, "Whether a share group may renew the lock of a record.",
        type=_BOOLEAN, broker=False, inert=False,
    ),
    _group(
        "errors.deadletterqueue.topic.name", None,
        "The topic for the dead letters of a share group (KIP-1191); without one they are not written.",
        type=_STRING, broker=False, inert=False,
    ),
    _group(
        "errors.deadletterqueue.copy.record.enable", False,
        "Whether dead letters have key, value and headers of the record, or say of it what happened alone.",
        type=_BOOLEAN, broker=False, inert=False,
    ),
    _group(
        "tidelog.share.retry.backoff.ms", 0,
        "How long a share group keeps a record back after a failed delivery; twice as long after each more.",
        minimum=0, broker=False, inert=False,
    ),
    _group(
        "tidelog.share.retry.backoff.max.ms", 60_000,
        "How long a share group keeps a record back at most.", minimum=0, broker=False, inert=False,
    ),
    _group("streams.session.timeout.ms", 45_000, "The session timeout of a streams group.", minimum=1),
    _group("streams.heartbeat.interval.ms", 5_000, "The heartbeat interval of a streams group.", minimum=1),
    _group(
        "streams.assignment.interval.ms", 1_000, "The time between assignments of a streams group.",
        minimum=0,
    ),
    _group(
        "streams.initial.rebalance.delay.ms", 3_000, "How long a new streams group waits for members.",
        minimum=0,
    ),
    _group(
        "streams.num.standby.replicas", 0, "How many standbys a task of a streams group has.", minimum=0
    ),
)  # fmt: skip

GROUP_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _GROUP_ROWS}

BOUNDED: dict[str, Bounds] = {
    **{
        f"{kind}.{what}": Bounds(f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
        for kind in ("consumer", "share", "streams")
        for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
    },
    **{
        f"share.{what}": Bounds(f"group.share.min.{what}", f"group.share.max.{what}")
        for what in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks")
    },
    "streams.num.standby.replicas": Bounds(most="group.streams.max.standby.replicas"),
}
_DURATION = re.compile(r"by_duration:P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.IGNORECASE)

CLIENT_METRICS_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        topic_setting(
            "metrics", _LIST, (), "The prefixes of the metrics to push; * is all of them.",
            inert=True, scope=Scope.CLIENT_METRICS,
        ),
        topic_setting(
            "interval.ms", _INT, 300_000, "How often clients push.", inert=True, scope=Scope.CLIENT_METRICS
        ),
        topic_setting(
            "match", _LIST, (), "Which clients push, as <what>=<expression>; none means all.",
            inert=True, scope=Scope.CLIENT_METRICS,
        ),
    )
}  # fmt: skip
_PUSH_MS_MIN, _PUSH_MS_MAX = 100, 3_600_000
_MATCHED = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)
MATCH_BYTES_MAX = 4_096


def group_value(name: str, configs: Mapping[str, str], settings: "BrokerSettings") -> SettingValue:
    """What holds for a group: its own value within the broker's bounds, or the broker's."""
    setting = GROUP_SETTINGS[name]
    text = configs.get(name)
    if text is None:
        return settings.get(setting.synonyms[0].name) if setting.synonyms else setting.default
    value = parse_value(setting, text)
    bounds = BOUNDED.get(name)
    if bounds is not None:
        assert isinstance(value, int)
        # The bounds may have moved since it was set.
        if bounds.least:
            value = max(value, settings.get_int(bounds.least))
        value = min(value, settings.get_int(bounds.most))
    return value


def group_config_faults(configs: Mapping[str, str], settings: "BrokerSettings") -> list[str]:
    """Say in words what is wrong with the settings of a group."""
    values: dict[str, SettingValue] = {}
    faults: list[str] = []
    for name, text in configs.items():
        setting = GROUP_SETTINGS.get(name)
        if setting is None:
            faults.append(f"Unknown group config name: {name}")
            continue
        try:
            values[name] = parse_value(setting, text)
        except ValueError as fault:
            faults.append(str(fault))
    faults += _bound_faults(values, settings)
    reset = values.get("share.auto.offset.reset")
    if isinstance(reset, str) and reset not in ("earliest", "latest") and not _DURATION.fullmatch(reset):
        faults.append("share.auto.offset.reset must be earliest, latest or by_duration:<PnDTnHnMn.nS>")
    letters = values.get("errors.deadletterqueue.topic.name")
    if isinstance(letters, str):
        prefix = settings.get_str("errors.deadletterqueue.topic.name.prefix")
        wrong = topic_name_fault(letters)
        if wrong is None and not letters.startswith(prefix):
            wrong = f"it does not begin with {prefix}"
        if wrong is not None:
            faults.append(f"errors.deadletterqueue.topic.name cannot be {letters}: {wrong}")
    if not faults:
        faults += _session_faults(configs, settings)
    return faults


def _bound_faults(values: Mapping[str, SettingValue], settings: "BrokerSettings") -> list[str]:
    faults = []
    for name, value in values.items():
        bounds = BOUNDED.get(name, Bounds())
        assert not bounds.most or isinstance(value, int)
        if bounds.least and isinstance(value, int) and value < settings.get_int(bounds.least):
            faults.append(f"{name} must be greater than or equal to {bounds.least}")
        if bounds.most and isinstance(value, int) and value > settings.get_int(bounds.most):
            faults.append(f"{name} must be less than or equal to {bounds.most}")
    return faults


def _session_faults(configs: Mapping[str, str], settings: "BrokerSettings") -> list[str]:
    faults = []
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        session_ms = group_value(session, configs, settings)
        heartbeat_ms = group_value(heartbeat, configs, settings)
        assert isinstance(session_ms, int) and isinstance(heartbeat_ms, int)
        if session_ms <= heartbeat_ms and (session in configs or heartbeat in configs):
            faults.append(f"{session} must be greater than {heartbeat}")
    return faults


def client_metrics_refusal(configs: Mapping[str, str]) -> Refused | None:
    """Why a subscription to client metrics cannot be like this; Kafka has two codes for it."""
    unknown = [name for name in configs if name not in CLIENT_METRICS_SETTINGS]
    if unknown:
        return Refused(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {unknown[0]}")
    try:
        values = {name: parse_value(CLIENT_METRICS_SETTINGS[name], text) for name, text in configs.items()}
    except ValueError as fault:
        return Refused(ErrorCode.INVALID_CONFIG, str(fault))
    interval_ms = values.get("interval.ms")
    if isinstance(interval_ms, int) and not _PUSH_MS_MIN <= interval_ms <= _PUSH_MS_MAX:
        message = f"interval.ms must be between {_PUSH_MS_MIN} and {_PUSH_MS_MAX} (1 hour), not {interval_ms}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    patterns = values.get("match", ())
    assert isinstance(patterns, tuple)
    for pattern in patterns:
        if not _is_match(pattern):
            return Refused(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")
    return None


def _is_match(pattern: str) -> bool:
    """Whether it is of the form <what>=<expression>."""
    what, equals, expression = pattern.partition("=")
    if what.strip() not in _MATCHED or not equals or "=" in expression or len(pattern) > MATCH_BYTES_MAX:
        return False
    try:
        re.compile(expression.strip())
    except (re.error, RecursionError, OverflowError):
        return False
    return True

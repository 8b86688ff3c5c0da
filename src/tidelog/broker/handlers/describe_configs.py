"""DescribeConfigs (key 32), versions 1 to 4: settings with their value, source, synonyms, type and meaning.

A topic shows every topic setting. A broker shows every broker setting, only for this broker; the empty broker
name shows what was set for all brokers while running (KIP-226). A group and a subscription to client metrics
show all of theirs, also where nobody has heard of them: these have what the broker's settings say. The
loggers of a broker show their level (KIP-412). Keys that do not exist are left out of the answer. Passwords
are sent as null. Null or no keys mean all.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.broker.config_answers import (
    BROKER_LOGGER,
    Fields,
    config_fields,
    error_fields,
    unsupported_resource,
)
from tidelog.broker.loggers import logger_levels, wrong_broker
from tidelog.controller.commands import ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import topic_name_fault
from tidelog.model.metadata import ALL_BROKERS
from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.settings import ConfigSource, Explanation, explain_client_metrics
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

_UNKNOWN_TYPE = 0


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer each resource from the settings and the image."""
    body = request.body
    synonyms = body.include_synonyms
    documentation = getattr(body, "include_documentation", False)

    def described(resource: Any) -> Fields:
        kind, name, keys = resource.resource_type, resource.resource_name, resource.configuration_keys
        explained: list[Explanation] | list[Fields] | Refused
        explained = (
            _loggers(broker, name, keys) if kind == BROKER_LOGGER else _explain(broker, kind, name, keys)
        )
        configs: list[Fields] = []
        if not isinstance(explained, Refused):
            configs = [
                config_fields(item, synonyms=synonyms, documentation=documentation)
                if isinstance(item, Explanation)
                else item
                for item in explained
            ]
        return {
            **error_fields(explained),
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": configs,
        }

    return {"results": [described(resource) for resource in body.resources]}


def _explain(
    broker: "Broker", resource_type: int, name: str, keys: Collection[str] | None
) -> list[Explanation] | Refused:
    match resource_type:
        case ConfigResourceType.TOPIC:
            return _explain_topic(broker, name, keys)
        case ConfigResourceType.BROKER:
            return _explain_broker(broker, name, keys)
        case ConfigResourceType.GROUP:
            return _explain_group(broker, name, keys)
        case ConfigResourceType.CLIENT_METRICS:
            return _explain_client_metrics(broker, name, keys)
        case _:
            return unsupported_resource(resource_type)


def _explain_topic(broker: "Broker", name: str, keys: Collection[str] | None) -> list[Explanation] | Refused:
    fault = topic_name_fault(name)
    if fault is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    topic = broker.image.topics.get(name)
    if topic is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return [broker.settings.explain_topic(key, topic.configs) for key in _chosen(TOPIC_SETTINGS, keys)]


def _explain_broker(broker: "Broker", name: str, keys: Collection[str] | None) -> list[Explanation] | Refused:
    if name == ALL_BROKERS:
        shared = broker.image.broker_configs.get(ALL_BROKERS, {})
        settings = broker.settings.with_dynamic(shared, {})
        return [_as_default(settings.explain(key)) for key in _chosen(shared, keys) if key in BROKER_SETTINGS]
    if name != str(broker.node_id):
        message = f"this is broker {broker.node_id}, it cannot describe the settings of broker {name!r}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    table = {**BROKER_SETTINGS, **broker.settings.listener_forms}
    return [broker.settings.explain(key) for key in _chosen(table, keys)]


def _as_default(explained: Explanation) -> Explanation:
    """A setting of all brokers: what one of them was started with is none of its synonyms."""
    shared = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return replace(explained, synonyms=tuple(each for each in explained.synonyms if each.source == shared))


def _explain_group(broker: "Broker", name: str, keys: Collection[str] | None) -> list[Explanation] | Refused:
    if not name:
        return Refused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    configs = broker.image.group_configs.get(name, {})
    return [broker.settings.explain_group(key, configs) for key in _chosen(GROUP_SETTINGS, keys)]


def _explain_client_metrics(
    broker: "Broker", name: str, keys: Collection[str] | None
) -> list[Explanation] | Refused:
    if not name:
        return Refused(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    configs = broker.image.client_metrics.get(name, {})
    return [explain_client_metrics(key, configs) for key in _chosen(CLIENT_METRICS_SETTINGS, keys)]


def _loggers(broker: "Broker", name: str, keys: Collection[str] | None) -> list[Fields] | Refused:
    refused = wrong_broker(broker, name)
    if refused is not None:
        return refused
    levels = logger_levels()
    return [
        {
            "name": key,
            "value": levels[key],
            "read_only": False,
            "config_source": int(ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG),
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _UNKNOWN_TYPE,
            "documentation": None,
        }
        for key in _chosen(levels, keys)
    ]


def _chosen(names: Collection[str], keys: Collection[str] | None) -> list[str]:
    return sorted(name for name in names if not keys or name in keys)

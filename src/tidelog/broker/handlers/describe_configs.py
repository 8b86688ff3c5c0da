"""DescribeConfigs (key 32), versions 1 to 4: settings with their value, source, synonyms, type and meaning.

A topic shows every topic setting. A broker shows every broker setting, only for this broker; the empty broker
name shows what was set for all brokers while running (KIP-226). Keys that do not exist are left out of the
answer. Passwords are sent as null. Null or no keys mean all.

Not supported: broker loggers, client metrics and groups, answered INVALID_REQUEST.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.config_answers import Fields, config_fields, error_fields, unsupported_resource
from tidelog.controller.commands import ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import topic_name_fault
from tidelog.model.metadata import ALL_BROKERS
from tidelog.model.settings import Explanation
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer each resource from the settings and the image."""
    body = request.body
    synonyms = body.include_synonyms
    documentation = getattr(body, "include_documentation", False)

    def described(resource: Any) -> Fields:
        explained = _explain(
            broker, resource.resource_type, resource.resource_name, resource.configuration_keys
        )
        configs = (
            []
            if isinstance(explained, Refused)
            else [config_fields(item, synonyms=synonyms, documentation=documentation) for item in explained]
        )
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
    if resource_type == ConfigResourceType.TOPIC:
        return _explain_topic(broker, name, keys)
    if resource_type == ConfigResourceType.BROKER:
        return _explain_broker(broker, name, keys)
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
        return [settings.explain(key) for key in _chosen(shared, keys) if key in BROKER_SETTINGS]
    if name != str(broker.node_id):
        message = f"this is broker {broker.node_id}, it cannot describe the settings of broker {name!r}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    table = {**BROKER_SETTINGS, **broker.settings.listener_forms}
    return [broker.settings.explain(key) for key in _chosen(table, keys)]


def _chosen(names: Collection[str], keys: Collection[str] | None) -> list[str]:
    return sorted(name for name in names if not keys or name in keys)

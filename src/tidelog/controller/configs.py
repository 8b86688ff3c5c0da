"""Changing the settings of topics, brokers, groups and subscriptions to client metrics.

They are set, deleted, appended to, subtracted from, or replaced all at once.
"""

from collections import Counter

from tidelog.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    Decision,
    Done,
    Result,
)
from tidelog.controller.elections import MIN_ISR, UNCLEAN_ELECTION, elect_offline, settle_eligible
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
)
from tidelog.model.resource_settings import client_metrics_refusal, group_config_faults
from tidelog.model.settings import BrokerSettings, broker_config_faults, topic_config_faults
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS, SettingType
from tidelog.protocol.primitives import STRING_BYTES_MAX

_STORED_UNDER = {
    ConfigResourceType.TOPIC: TOPIC_RESOURCE,
    ConfigResourceType.BROKER: BROKER_RESOURCE,
    ConfigResourceType.GROUP: GROUP_RESOURCE,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_RESOURCE,
}
#: resources that come to be with their settings
_NAMED = {
    ConfigResourceType.GROUP: "group",
    ConfigResourceType.CLIENT_METRICS: "subscription to client metrics",
}


def alter_configs(command: AlterConfigs, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Decide each resource; those refused keep their settings."""
    records: list[MetadataRecord] = []
    results: list[Result] = []
    unclean = min_isr = False
    named = Counter((resource.type, resource.name) for resource in command.resources)
    for resource in command.resources:
        if named[resource.type, resource.name] > 1:
            message = f"{resource.type.name.lower()} {resource.name!r} is named more than once"
            results.append(Refused(ErrorCode.INVALID_REQUEST, message))
            continue
        changed = _changed_configs(resource, image, settings)
        if isinstance(changed, Refused):
            results.append(changed)
            continue
        results.append(Done())
        present = _present_configs(resource, image)
        if changed != present:
            records.append(ConfigRecord(_STORED_UNDER[resource.type], resource.name, changed))
            # Unsetting counts too: what holds for all brokers may be laxer.
            unclean = unclean or present.get(UNCLEAN_ELECTION) != changed.get(UNCLEAN_ELECTION)
            min_isr = min_isr or present.get(MIN_ISR) != changed.get(MIN_ISR)
    if unclean and not command.validate_only:
        # Whoever allows unclean elections waits for one.
        records += elect_offline(image.apply(records), settings).records
    if min_isr and not command.validate_only:
        records += settle_eligible(image.apply(records), settings)
    return Decision(() if command.validate_only else tuple(records), tuple(results))


def _present_configs(resource: ConfigChanges, image: ClusterImage) -> dict[str, str]:
    if resource.type is ConfigResourceType.TOPIC:
        topic = image.topics.get(resource.name)
        return {} if topic is None else dict(topic.configs)
    if resource.type is ConfigResourceType.GROUP:
        return dict(image.group_configs.get(resource.name, {}))
    if resource.type is ConfigResourceType.CLIENT_METRICS:
        return dict(image.client_metrics.get(resource.name, {}))
    return dict(image.broker_configs.get(resource.name, {}))


def _changed_configs(
    resource: ConfigChanges, image: ClusterImage, settings: BrokerSettings
) -> dict[str, str] | Refused:
    refused = _check_resource(resource, image)
    if refused is not None:
        return refused
    present = _present_configs(resource, image)
    configs = {} if resource.replace_all else dict(present)
    for change in resource.changes:
        value = _changed_value(change, resource.type, configs, settings)
        if isinstance(value, Refused):
            return value
        if value is None:
            configs.pop(change.name, None)
        else:
            configs[change.name] = value
    if resource.type is ConfigResourceType.CLIENT_METRICS:
        return client_metrics_refusal(configs) or configs
    if resource.type is ConfigResourceType.TOPIC:
        faults = topic_config_faults(configs, resource.name)
    elif resource.type is ConfigResourceType.GROUP:
        faults = group_config_faults(configs, settings)
    else:
        # Only what changes is checked: a setting from before may have become read-only since.
        altered = {name: value for name, value in configs.items() if present.get(name) != value}
        faults = broker_config_faults(altered, cluster_wide=resource.name == ALL_BROKERS)
    if faults:
        return Refused(ErrorCode.INVALID_CONFIG, "; ".join(faults))
    if resource.type is ConfigResourceType.TOPIC and resource.name not in image.topics:
        # Kafka looks at the values first.
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.name!r} does not exist")
    return configs


def _check_resource(resource: ConfigChanges, image: ClusterImage) -> Refused | None:
    repeated = [
        name for name, count in Counter(change.name for change in resource.changes).items() if count > 1
    ]
    if repeated:
        return Refused(ErrorCode.INVALID_REQUEST, f"settings are named more than once: {', '.join(repeated)}")
    empty = [
        change.name
        for change in resource.changes
        if change.value is None and change.operation is not ConfigOperation.DELETE
    ]
    if empty:
        return Refused(ErrorCode.INVALID_REQUEST, f"settings were given no value: {', '.join(empty)}")
    if resource.type is ConfigResourceType.TOPIC:
        if not resource.name:
            return Refused(ErrorCode.INVALID_REQUEST, "settings of all topics are set on the brokers")
        return None
    if resource.type in _NAMED:
        message = f"settings are set for one {_NAMED[resource.type]}, not for all"
        return None if resource.name else Refused(ErrorCode.INVALID_REQUEST, message)
    if resource.name == ALL_BROKERS:
        return None
    if not resource.name.isascii() or not resource.name.isdigit():
        return Refused(ErrorCode.INVALID_REQUEST, f"{resource.name!r} is not the number of a broker")
    if int(resource.name) not in image.brokers:
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {resource.name} is not registered")
    return None


def _changed_value(
    change: ConfigChange, type: ConfigResourceType, configs: dict[str, str], settings: BrokerSettings
) -> str | Refused | None:
    if change.operation is ConfigOperation.DELETE:
        return None
    assert change.value is not None
    if change.operation is ConfigOperation.SET:
        return change.value
    table = TOPIC_SETTINGS if type is ConfigResourceType.TOPIC else BROKER_SETTINGS
    setting = table.get(change.name)
    if type in _NAMED or (setting is not None and setting.type is not SettingType.LIST):
        message = f"{change.name} is not a list: it can be set or deleted, not appended to or subtracted from"
        return Refused(ErrorCode.INVALID_CONFIG, message)
    present = configs.get(change.name)
    if present is None and setting is not None:
        explain = (
            settings.explain_topic(change.name, {})
            if table is TOPIC_SETTINGS
            else settings.explain(change.name)
        )
        present = explain.value
    items = [item for item in (present or "").split(",") if item]
    operands = [item.strip() for item in change.value.split(",")]
    if change.operation is ConfigOperation.APPEND:
        # An empty one too, as in Kafka: most settings refuse it.
        items = list(dict.fromkeys([*items, *operands]))
    else:
        items = [item for item in items if item not in operands]
    value = ",".join(items)
    if len(value.encode()) > STRING_BYTES_MAX:
        # No answer could tell it.
        message = f"{change.name} would be longer than the {STRING_BYTES_MAX} bytes that a value may have"
        return Refused(ErrorCode.INVALID_CONFIG, message)
    return value

"""AlterConfigs (key 33), versions 0 to 2: all settings of a topic, broker or group are replaced.

Whatever is not named goes back to its default; IncrementalAlterConfigs is the better way (KIP-339). A null
value is refused with INVALID_REQUEST, an unknown or bad setting with INVALID_CONFIG.
Subscriptions to client metrics are replaced likewise; loggers cannot be.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.config_answers import submit_changes, unsupported_resource
from tidelog.broker.parking import Parked
from tidelog.controller.commands import ConfigChange, ConfigChanges, ConfigOperation, ConfigResourceType
from tidelog.model.errors import Refused

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

_ALTERED = frozenset(ConfigResourceType)


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Have the controller replace the settings."""
    resources: list[tuple[int, str, ConfigChanges | Refused | None]] = [
        (resource.resource_type, resource.resource_name, _changes(resource))
        for resource in request.body.resources
    ]
    return submit_changes(broker, resources, validate_only=request.body.validate_only)


def _changes(resource: Any) -> ConfigChanges | Refused:
    if resource.resource_type not in _ALTERED:
        return unsupported_resource(resource.resource_type)
    changes = tuple(
        ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs
    )
    kind = ConfigResourceType(resource.resource_type)
    return ConfigChanges(kind, resource.resource_name, changes, replace_all=True)

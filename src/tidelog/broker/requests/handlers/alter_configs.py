"""AlterConfigs (key 33), versions 0 to 2: all settings of a topic, broker or group are replaced.

Whatever is not named goes back to its default; IncrementalAlterConfigs is the better way (KIP-339). A null
value is refused with INVALID_REQUEST, an unknown or bad setting with INVALID_CONFIG.
Subscriptions to client metrics are replaced likewise; loggers cannot be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import submit_changes, unsupported_resource
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import ConfigChange, ConfigChanges, ConfigOperation, ConfigResourceType
from tidelog.model.errors import Refused

_ALTERED = frozenset(ConfigResourceType)


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller replace the settings."""

    metadata: Metadata
    settings: LiveSettings
    node_id: int

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        resources: list[tuple[int, str, ConfigChanges | Refused | None]] = [
            (resource.resource_type, resource.resource_name, _changes(resource))
            for resource in request.body.resources
        ]
        return submit_changes(
            self.metadata, self.settings, self.node_id, resources, validate_only=request.body.validate_only
        )


def _changes(resource: Any) -> ConfigChanges | Refused:
    if resource.resource_type not in _ALTERED:
        return unsupported_resource(resource.resource_type)
    changes = tuple(
        ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs
    )
    kind = ConfigResourceType(resource.resource_type)
    return ConfigChanges(kind, resource.resource_name, changes, replace_all=True)

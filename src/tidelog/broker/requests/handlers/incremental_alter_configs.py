"""IncrementalAlterConfigs (key 44), versions 0 to 1: single settings are set, deleted, added to, taken from.

Appending and subtracting are for settings that are lists, such as `cleanup.policy`; where nothing was set
they start from the default (KIP-339). Settings of a broker change while it runs only where the table says
so.

Topics, brokers, groups and subscriptions to client metrics are the controller's. The levels of loggers are
changed here, on the broker that was asked, and kept nowhere (KIP-412).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import BROKER_LOGGER, submit_changes, unsupported_resource
from tidelog.broker.requests.loggers import alter_loggers
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import ConfigChange, ConfigChanges, ConfigOperation, ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused

_OPERATIONS = frozenset(ConfigOperation)
_ALTERED = frozenset(ConfigResourceType)


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller make the changes."""

    metadata: Metadata
    settings: LiveSettings
    node_id: int

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        validate_only = request.body.validate_only
        asked = Counter(
            (resource.resource_type, resource.resource_name) for resource in request.body.resources
        )

        def changes(resource: Any) -> ConfigChanges | Refused | None:
            if resource.resource_type != BROKER_LOGGER:
                return _changes(resource)
            if asked[resource.resource_type, resource.resource_name] > 1:
                return Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            return alter_loggers(self.node_id, resource, validate_only=validate_only)

        resources = [
            (resource.resource_type, resource.resource_name, changes(resource))
            for resource in request.body.resources
        ]
        return submit_changes(
            self.metadata, self.settings, self.node_id, resources, validate_only=validate_only
        )


def _changes(resource: Any) -> ConfigChanges | Refused:
    if resource.resource_type not in _ALTERED:
        return unsupported_resource(resource.resource_type)
    for config in resource.configs:
        if config.config_operation not in _OPERATIONS:
            message = f"{config.name}: there is no operation {config.config_operation}"
            return Refused(ErrorCode.INVALID_REQUEST, message)
    changes = tuple(
        ConfigChange(config.name, ConfigOperation(config.config_operation), config.value)
        for config in resource.configs
    )
    return ConfigChanges(ConfigResourceType(resource.resource_type), resource.resource_name, changes)

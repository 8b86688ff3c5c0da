"""ListConfigResources (key 74), versions 0 to 1: the names of everything that can have settings.

Version 0 asks for subscriptions to client metrics alone (it was ListClientMetricsResources). From version 1 a
client names the kinds it wants, none meaning all (KIP-1142): topics, brokers and their loggers as they are,
groups and subscriptions where something was set for them. A kind that does not exist is answered
UNSUPPORTED_VERSION.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    RESOURCE_TYPES,
    TOPIC,
)
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object]:
        image = self.metadata.image
        kinds = getattr(request.body, "resource_types", (CLIENT_METRICS,)) or RESOURCE_TYPES
        if any(kind not in RESOURCE_TYPES for kind in kinds):
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
        brokers = [str(broker_id) for broker_id in sorted(image.brokers)]
        names: dict[int, list[str]] = {
            GROUP: sorted(image.group_configs),
            CLIENT_METRICS: sorted(image.client_metrics),
            BROKER_LOGGER: brokers,
            BROKER: brokers,
            TOPIC: sorted(image.topics),
        }
        return {
            "error_code": ErrorCode.NONE,
            "config_resources": [
                {"resource_name": name, "resource_type": int(kind)}
                for kind in names
                if kind in kinds
                for name in names[kind]
            ],
        }

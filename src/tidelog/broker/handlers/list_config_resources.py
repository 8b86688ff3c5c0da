"""ListConfigResources (key 74), versions 0 to 1: the names of everything that can have settings.

Version 0 asks for client metrics alone (it was ListClientMetricsResources), of which there are none here.
From version 1 a client names the kinds it wants, none meaning all (KIP-1142): topics and brokers are listed;
loggers, client metrics and groups have no settings here. A kind that does not exist is answered
UNSUPPORTED_VERSION.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.config_answers import RESOURCE_TYPES
from tidelog.controller.commands import ConfigResourceType
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

_CLIENT_METRICS = 16


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer from the image."""
    image = broker.image
    kinds = getattr(request.body, "resource_types", (_CLIENT_METRICS,)) or tuple(RESOURCE_TYPES)[1:]
    if any(kind not in RESOURCE_TYPES or kind == 0 for kind in kinds):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
    names: dict[int, list[str]] = {
        ConfigResourceType.TOPIC: sorted(image.topics),
        ConfigResourceType.BROKER: [str(broker_id) for broker_id in sorted(image.brokers)],
    }
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": int(kind)}
            for kind in dict.fromkeys(kinds)
            for name in names.get(kind, [])
        ],
    }

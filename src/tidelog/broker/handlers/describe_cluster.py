"""DescribeCluster (key 60), versions 0 to 2: the cluster's id, controller and brokers.

From version 1 a client says whether it asks brokers or controllers (KIP-919); only brokers listen here, so
asking for controllers is answered MISMATCHED_ENDPOINT_TYPE. No broker is ever fenced (version 2).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.cluster_answers import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED, broker_fields
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

_BROKERS = 1
_CONTROLLERS = 2


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer from the image."""
    image = broker.image
    endpoint_type = getattr(request.body, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        return _refuse(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a listener of brokers, not of controllers"
        )
    if endpoint_type != _BROKERS:
        return _refuse(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {endpoint_type}")
    asked = request.body.include_cluster_authorized_operations
    return {
        "endpoint_type": _BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": image.controller_id,
        "brokers": broker_fields(image, request.context.listener_name, "broker_id"),
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    }


def _refuse(error: ErrorCode, message: str) -> Mapping[str, object]:
    return {
        "error_code": error,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "brokers": [],
    }

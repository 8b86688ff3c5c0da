"""DescribeCluster (key 60), versions 0 to 2: the cluster's id, controller and brokers.

From version 1 a client says whether it asks brokers or controllers (KIP-919); only brokers listen here, so
asking for controllers is answered MISMATCHED_ENDPOINT_TYPE. From version 2 it may also ask for the brokers
that are registered but not there, which are told apart as fenced (KIP-1073).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.cluster_answers import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    Fields,
    broker_fields,
    live_controller_id,
)
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage

_BROKERS = 1
_CONTROLLERS = 2


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object]:
        image = self.metadata.image
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
            "controller_id": live_controller_id(image),
            "brokers": _brokers(
                image, request.context.listener_name, getattr(request.body, "include_fenced_brokers", False)
            ),
            "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
        }


def _brokers(image: ClusterImage, listener_name: str, include_fenced: bool) -> list[Fields]:
    brokers = broker_fields(image, listener_name, "broker_id")
    if include_fenced:
        away = {number: broker for number, broker in image.brokers.items() if not broker.alive}
        for number, broker in sorted(away.items()):
            # Where it listened last, if it ever did on this listener: it cannot be reached anyway.
            endpoint = broker.endpoints.get(listener_name)
            host, port = ("", -1) if endpoint is None else (endpoint.host, endpoint.port)
            row = {"broker_id": number, "host": host, "port": port, "rack": broker.rack, "is_fenced": True}
            brokers.append(row)
    return brokers


def _refuse(error: ErrorCode, message: str) -> Mapping[str, object]:
    return {
        "error_code": error,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "brokers": [],
    }

"""UnregisterBroker (key 64), version 0: a broker that is gone will not come back (KIP-500).

One that was never there is answered with BROKER_ID_NOT_REGISTERED. Its replicas stay assigned to it until
they are moved.
"""

from typing import TYPE_CHECKING

from tidelog.broker.config_answers import error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import UnregisterBroker

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Parked:
    """Have the controller forget the broker."""
    parked = Parked()
    command = UnregisterBroker(request.body.broker_id)
    broker.metadata.submit(command, lambda results: parked.answer(error_fields(results[0])))
    return parked

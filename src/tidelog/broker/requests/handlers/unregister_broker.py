"""UnregisterBroker (key 64), version 0: a broker that is gone will not come back (KIP-500).

One that was never there is answered with BROKER_ID_NOT_REGISTERED. Its replicas stay assigned to it until
they are moved.
"""

from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import UnregisterBroker


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller forget the broker."""

    metadata: Metadata

    def handle(self, request: Request) -> DelayedAnswer:
        delayed = DelayedAnswer()
        command = UnregisterBroker(request.body.broker_id)
        self.metadata.submit(command, lambda results: delayed.answer(error_fields(results[0])))
        return delayed

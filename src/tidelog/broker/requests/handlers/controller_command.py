"""ControllerCommand (key 10000), version 0: a broker asks the controller to decide a command.

Private to the brokers of one cluster: never advertised, no tagged fields, JSON bodies (`command_codec`). The
answer comes when the decision is durable. A broker that is not the controller says so, and the sender looks
for the one that is. Accepted on the listener that brokers reach each other by, nowhere else.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.command_codec import (
    Decided,
    MalformedCommand,
    NotController,
    decode_command,
    encode_answer,
)
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import BrokersChanged, FormCluster
from tidelog.protocol.primitives import MalformedRequest

if TYPE_CHECKING:
    from tidelog.broker.metadata.controller_runtime import Results

# What only a broker tells itself, from what it saw in the coordination store.
_OWN_COMMANDS = (BrokersChanged, FormCluster)


@dataclass(frozen=True, slots=True)
class Handler:
    """Decide the command here; the answer is an encoded body."""

    metadata: Metadata
    settings: LiveSettings

    def handle(self, listener_name: str, body: memoryview) -> DelayedAnswer:
        if listener_name != self.settings.static.inter_broker_listener_name:
            raise MalformedRequest(f"listener {listener_name} is not for brokers")
        try:
            command, timeout_ms = decode_command(body)
        except MalformedCommand as fault:
            raise MalformedRequest(str(fault)) from fault
        if isinstance(command, _OWN_COMMANDS):
            raise MalformedRequest(f"{type(command).__name__} is not a command for others to give")
        delayed = DelayedAnswer()

        def decided(results: "Results | None", sequence: int) -> None:
            answer = NotController() if results is None else Decided(results, sequence)
            delayed.answer(encode_answer(answer))

        self.metadata.decide(command, decided, timeout_ms)
        return delayed

"""The port to the other brokers of the cluster: one request, one answer.

Every answer comes back through `then`, on the loop, exactly once, and never before `request` returned; there
is no task and no future per request. An answer is the response body that follows the response header, as a
view of the receive buffer: it is valid only during the call. Trouble on the way is a value, not an exception:
a `PeerFault` says that no answer will come, which leaves open whether the other side acted on the request.

Requests of one (broker, channel) pair share one connection and are answered in the order they were sent, so
what must not wait for a long poll goes over another channel than the one that polls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class PeerFault(NamedTuple):
    """Why no answer came: not sent, connection lost, timed out, unknown broker."""

    reason: str


PeerAnswer = Callable[[memoryview | PeerFault], None]

CONTROL_CHANNEL = "control"
FETCH_CHANNEL = "fetch"


class Peers(Protocol):
    """Sends requests to the other brokers of the cluster."""

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: bytes | list[bytes],
        then: PeerAnswer,
        *,
        timeout_ms: int,
        channel: str = CONTROL_CHANNEL,
    ) -> None:
        """Send one request body (without header) and call `then` once with the answer or the fault."""

    def forget(self, broker_id: int) -> None:
        """Close the links to a broker that left or moved; what waits on them ends with a fault."""


class NoPeers:
    """A broker alone: every request fails, so callers need no second way for a cluster of one."""

    __slots__ = ("_post",)

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """`post` runs a call on a later turn of the loop."""
        self._post = post

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: bytes | list[bytes],
        then: PeerAnswer,
        *,
        timeout_ms: int,
        channel: str = CONTROL_CHANNEL,
    ) -> None:
        """Answer with a fault on a later turn."""
        self._post(lambda: then(PeerFault(f"broker {broker_id} is not a peer of this broker")))

    def forget(self, broker_id: int) -> None:
        """Nothing to close."""

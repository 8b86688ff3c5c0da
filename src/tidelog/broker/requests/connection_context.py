"""What the broker knows of the peer on one connection.

Whoever serves its requests reads it, and leaves in it what the next request of the connection needs. The
socket belongs to the server; `finish`, `throttle_ms` and `wait_for` say what it shall do with it.
"""

from collections.abc import Callable
from typing import Protocol

from tidelog.broker.requests.checked_batches import Checked
from tidelog.broker.requests.fetch_templates import FetchTemplate
from tidelog.broker.requests.produce_templates import TEMPLATES_BYTES_MAX, TEMPLATES_MAX, ProduceTemplate
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.credentials import ANONYMOUS
from tidelog.protocol.headers import REQUEST_PREFIX, read_client_id

#: what the size of a frame can say
FRAME_BYTES_MAX = 2**31 - 1


class Gate(Protocol):
    """SASL of one connection (see authentication)."""

    #: whether frames are bare tokens now
    raw: bool

    @property
    def completed(self) -> bool:
        """Whether the peer has ever proved who it is."""

    def refusal(self, api_key: int) -> str | None:
        """Why a request may not be made now; None if it may."""

    def handshake(self, mechanism: str, version: int) -> dict[str, object] | DelayedAnswer:
        """Begin an exchange."""

    def authenticate(self, data: bytes) -> dict[str, object] | DelayedAnswer:
        """Take a step of it."""

    def take_raw(self, frame: memoryview) -> DelayedAnswer | None:
        """Take a step of it that came without a request around it."""

    def abandon(self) -> None:
        """The connection is gone."""


class ConnectionContext:
    """What the broker knows of the peer on one connection."""

    __slots__ = (
        "authentication",
        "checked",
        "client_id",
        "client_id_length",
        "client_id_raw",
        "counted_ns",
        "encrypted",
        "fetch_template",
        "finish",
        "frame_bytes_max",
        "gate",
        "host",
        "is_replica",
        "last_api_key",
        "leavings",
        "listener_name",
        "port",
        "principal",
        "produce_template_end",
        "produce_templates",
        "produce_templates_bytes",
        "run_in_vain",
        "throttle_ms",
        "token_id",
        "wait_for",
    )

    def __init__(self, host: str, port: int, listener_name: str) -> None:
        self.host = host
        self.port = port
        self.listener_name = listener_name
        self.principal = ANONYMOUS
        #: SASL of this connection, where its listener has it, and whether every frame must pass by it now
        self.authentication: Gate | None = None
        self.gate: Gate | None = None
        #: the delegation token that it authenticated with, if it did
        self.token_id = ""
        self.encrypted = False
        #: whether the last Fetch request came from a broker: it is not counted
        self.is_replica = False
        #: what was counted of the time of the request that is served now; None if it is not to be counted
        self.counted_ns: int | None = 0
        #: for how long the server shall read nothing from it, since it is above a quota
        self.throttle_ms = 0
        #: what was found of batches whose check takes long, for the Produce request that is offered next
        self.checked: Checked | None = None
        #: for a request that is held: takes the call that has it offered again
        self.wait_for: Callable[[Callable[[], None]], None] | None = None
        #: closes the connection once what was answered has left; None when it is gone
        self.finish: Callable[[], None] | None = None
        #: what is done when the connection is gone
        self.leavings: tuple[Callable[[], None], ...] = ()
        #: the largest frame that is taken from it at present
        self.frame_bytes_max = FRAME_BYTES_MAX
        #: of the last request that went by the general path
        self.last_api_key = -1
        self.client_id: str | None = None
        self.client_id_length = -1
        self.client_id_raw = b""
        #: templates of earlier Produce requests, and how long the last one was (see produce_templates)
        self.produce_templates: dict[bytes, ProduceTemplate] = {}
        self.produce_templates_bytes = 0
        self.produce_template_end = 0
        #: whether like requests among those that are left here could not be served together
        self.run_in_vain = False
        #: the template of the last Fetch request, if it has one (see fetch_templates)
        self.fetch_template: FetchTemplate | None = None

    def lost(self) -> None:
        """The connection is gone: do what was to be done then."""
        leavings, self.leavings = self.leavings, ()
        for leaving in leavings:
            leaving()

    def forget_templates(self) -> None:
        """Let the next Produce or Fetch request take the general path: what was allowed may not be now."""
        self.fetch_template = None
        self.forget_produce_templates()

    def forget_produce_templates(self) -> None:
        """Let the next Produce requests go by the general path."""
        self.produce_templates.clear()
        self.produce_templates_bytes = 0
        self.produce_template_end = 0

    def keep_produce_template(self, key: bytes, template: ProduceTemplate, end: int) -> None:
        """Let requests that begin with these bytes, which end there in the frame, go by the fast path."""
        if key not in self.produce_templates:
            full = len(self.produce_templates) >= TEMPLATES_MAX
            if full or self.produce_templates_bytes > TEMPLATES_BYTES_MAX:
                self.forget_produce_templates()
            self.produce_templates_bytes += len(key)
        self.produce_template_end = end
        self.produce_templates[key] = template

    def remember_client_id(self, frame: memoryview, length: int) -> None:
        """Keep the client id, decoding it only when it changes."""
        raw = bytes(frame[REQUEST_PREFIX.size : REQUEST_PREFIX.size + max(length, 0)])
        if length != self.client_id_length or raw != self.client_id_raw:
            self.client_id = read_client_id(frame, length)
            self.client_id_length = length
            self.client_id_raw = raw

    def __repr__(self) -> str:
        return (
            f"<ConnectionContext {self.host}:{self.port} {self.listener_name} {self.principal} "
            f"client_id={self.client_id!r}>"
        )

"""MQTT in binary messages of a web socket (MQTT 5, section 6): wsproto between the socket and a connection.

The subprotocol is `mqtt`. A message may hold part of a packet, or several. Limits: the handshake has
HANDSHAKE_BYTES_MAX at most, within the time that CONNECT has; a frame's payload is handed on as it arrives,
so nothing is collected here.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from tidelog.gateways.mqtt.connection import Connection

if TYPE_CHECKING:
    from tidelog.gateways.mqtt.gateway import Gateway

log = logging.getLogger(__name__)

SUBPROTOCOL = "mqtt"
HANDSHAKE_BYTES_MAX = 16 << 10


class _Frames(asyncio.Transport):
    """What the MQTT connection takes for its socket."""

    def __init__(self, socket: "WebSocket", transport: asyncio.Transport) -> None:
        super().__init__()
        self._socket = socket
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def write(self, data: Any) -> None:
        self._socket.send(bytes(data))

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._socket.say_goodbye()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class WebSocket(asyncio.Protocol):
    """The protocol of one socket."""

    def __init__(self, gateway: "Gateway") -> None:
        self._connection = Connection(gateway)
        self._gateway = gateway
        self._frames = WSConnection(ConnectionType.SERVER)
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._handshake_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(_Frames(self, self._transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._open:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._connection.abort("the handshake of a web socket is too long")
                return
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._handle(event)
        except (RemoteProtocolError, LocalProtocolError) as fault:
            self._connection.abort(f"no web socket: {fault}")

    def _handle(self, event: object) -> None:
        assert self._transport is not None
        if isinstance(event, Request):
            if SUBPROTOCOL not in event.subprotocols:
                self._transport.write(self._frames.send(RejectConnection(status_code=400)))
                self._transport.close()
                return
            self._open = True
            self._transport.write(self._frames.send(AcceptConnection(subprotocol=SUBPROTOCOL)))
        elif isinstance(event, BytesMessage):
            self._connection.data_received(bytes(event.data))
        elif isinstance(event, TextMessage):
            self._connection.abort("text in a web socket")
        elif isinstance(event, Ping):
            self._transport.write(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._transport.write(self._frames.send(event.response()))
            self._transport.close()

    def send(self, data: bytes) -> None:
        if self._open and self._transport is not None:
            self._transport.write(self._frames.send(BytesMessage(data)))

    def say_goodbye(self) -> None:
        if self._open and self._transport is not None:
            try:
                self._transport.write(self._frames.send(CloseConnection(1000)))
            except LocalProtocolError:
                log.debug("the web socket is closed already")

"""A client connection over TLS: the plain one, with encryption between it and the socket.

Ciphertext is read into a buffer that all TLS connections share, goes through OpenSSL in memory, and what
comes out is served from the same buffers as on a plain connection. So the certificate can change from one
connection to the next, connections are counted and timed before their handshake, and the loop has no part in
it.
"""

import contextlib
import ssl
from typing import TYPE_CHECKING, cast

from tidelog.security.listeners import ListenerSecurity
from tidelog.server.connection import QUEUED_ANSWER_BYTES_MAX, Connection
from tidelog.server.output import SocketOutput
from tidelog.server.tls_output import TlsOutput

if TYPE_CHECKING:
    from tidelog.server.socket_server import SocketServer

#: the smallest room worth decrypting into
ROOM_BYTES_MIN = 16 << 10


class TlsConnection(Connection):
    """The protocol object of one connection with TLS."""

    __slots__ = ("_established", "_incoming", "_outgoing", "_tls")

    def __init__(self, server: "SocketServer", security: ListenerSecurity) -> None:
        super().__init__(server, security.name, security)
        assert security.tls is not None
        self.context.encrypted = True
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = security.tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._established = False

    @property
    def established(self) -> bool:
        return self._established and super().established

    def _make_output(self, encrypted: SocketOutput) -> TlsOutput:
        return TlsOutput(self._tls, self._outgoing, encrypted, self._failed)

    def _failed(self) -> None:
        self.server.loop.call_soon(self.close)

    # -- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.server.encrypted_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self.server.encrypted_buffer[:nbytes])
        try:
            if not self._established and not self._shake_hands():
                return
            self._decrypt()
        except ssl.SSLError as fault:
            # What OpenSSL has to say about it goes out first.
            self._send_encrypted()
            self.close(f"TLS failed: {fault.reason or fault}" if not self._established else None)

    def eof_received(self) -> bool:
        return False

    def _shake_hands(self) -> bool:
        """Go on with the handshake; whether it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            return False
        self._send_encrypted()
        self._established = True
        security = self.security
        assert security is not None
        if not security.authenticates:
            principal = security.certificate_principal(self._tls.getpeercert())
            if principal is None:
                self.close("no rule of ssl.principal.mapping.rules fits its certificate")
                return False
            self.context.principal = principal
        return True

    def _decrypt(self) -> None:
        """Serve what has arrived, as much at a time as there is room for."""
        while not self._paused and self._transport is not None and not self._transport.is_closing():
            room = super().get_buffer(0)
            filled = 0
            drained = parting = False
            try:
                while not parting and len(room) - filled >= min(ROOM_BYTES_MIN, len(room)):
                    # Into a buffer it returns how much; the annotation knows the other form alone.
                    count = cast(int, self._tls.read(len(room) - filled, room[filled:]))
                    parting = count == 0
                    filled += count
            except ssl.SSLWantReadError:
                drained = True
            if filled:
                super().buffer_updated(filled)
            if parting:
                # The client says farewell, and may wait for ours before it lets go.
                self.finish()
            if drained or parting:
                break
        self._send_encrypted()
        if self._output is not None and self._output.queued_bytes > QUEUED_ANSWER_BYTES_MAX:
            # TLS answers by itself too (refused renegotiations): not without end to who does not read.
            self._pause()

    def _send_encrypted(self) -> None:
        if isinstance(self._output, TlsOutput):
            self._output.send_encrypted()

    # -- flow control

    def _resume(self) -> None:
        output = self._output
        if output is not None:
            output.flush()
        was_paused = self._paused
        super()._resume()
        if was_paused and not self._paused:
            # What was received before the pause is decrypted without anything new arriving.
            self.server.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        try:
            self._decrypt()
        except ssl.SSLError:
            self.close()

    def finish(self, reason: str | None = None) -> None:
        # The other side's farewell has not come, which OpenSSL minds; ours is on its way.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._send_encrypted()
        super().finish(reason)

"""A TCP proxy in front of a broker that loses an answer.

    with LossyProxy(port) as proxy:
        ...                                    # connect to proxy.port: everything passes
        proxy.lose("late")                     # the next request reaches the broker, its answer nobody

`early` cuts the connection as soon as the whole request went on to the broker: it is carried out while the
client is gone. `late` waits for the answer and cuts then: it was carried out before.
"""

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType

CHUNK_BYTES = 1 << 16
#: how long an answer that is to be lost is waited for
ANSWER_SECONDS_MAX = 20.0
_SIZE = struct.Struct(">i")


class LossyProxy:
    """Passes bytes between one client and a broker of this machine, until it is told to lose an answer."""

    def __init__(self, broker_port: int) -> None:
        self._broker = ("127.0.0.1", broker_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lose: str | None = None
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lossy proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> "LossyProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._thread.join()
        self._ended.close()

    def lose(self, when: str) -> None:
        """Cut the connection around the next request: `early` or `late`."""
        assert when in ("early", "late")
        self._lose = when

    def _serve(self) -> None:
        with self._listener:
            while self._ended not in _readable(self._listener, self._ended):
                with contextlib.suppress(OSError):
                    client, _ = self._listener.accept()
                    with client, socket.create_connection(self._broker, ANSWER_SECONDS_MAX) as broker:
                        self._pass(client, broker)

    def _pass(self, client: socket.socket, broker: socket.socket) -> None:
        """One connection, until one of the two closes it or an answer is lost."""
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self._ended not in (ready := _readable(client, broker, self._ended)):
            for end in ready:
                if end is client and self._lose is not None:
                    when, self._lose = self._lose, None
                    broker.sendall(_frame(client))
                    if when == "late":
                        _frame(broker)
                    return
                data = end.recv(CHUNK_BYTES)
                if not data:
                    return
                (broker if end is client else client).sendall(data)


def _readable(*ends: socket.socket) -> list[socket.socket]:
    return select.select(ends, [], [])[0]


def _frame(end: socket.socket) -> bytes:
    """A whole request or answer."""
    head = _exactly(end, _SIZE.size)
    return head + _exactly(end, _SIZE.unpack(head)[0])


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = end.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed in the middle of a frame")
        data += piece
    return data

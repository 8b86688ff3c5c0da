"""The sending side of a TLS connection: what goes out is encrypted first, piece by piece.

It stands in front of a `SocketOutput`, which sends the encrypted bytes. Ranges of files are read and
encrypted as the socket takes them, so that an answer of any size holds a few pieces in memory, no more.
"""

import ssl
from collections import deque
from collections.abc import Callable, Sequence

from tidelog.server.output import FileRange, SocketOutput

#: read and encrypted at once
PIECE_BYTES = 128 << 10
#: encrypted bytes that may wait for the socket before no more are made
ENCRYPTED_BYTES_MAX = 256 << 10


class TlsOutput:
    """Encrypts and sends bytes and file ranges in order."""

    __slots__ = ("_encrypted", "_on_failed", "_outgoing", "_queue", "_queued_plain_bytes", "_tls")

    def __init__(
        self,
        tls: ssl.SSLObject,
        outgoing: ssl.MemoryBIO,
        encrypted: SocketOutput,
        on_failed: Callable[[], None],
    ) -> None:
        self._tls = tls
        self._outgoing = outgoing
        self._encrypted = encrypted
        self._on_failed = on_failed
        self._queue: deque[tuple[bytes | FileRange, int]] = deque()
        self._queued_plain_bytes = 0

    @property
    def closed(self) -> bool:
        return self._encrypted.closed

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait in memory, encrypted or not; ranges of files take none."""
        return self._queued_plain_bytes + self._encrypted.queued_bytes

    def send_bytes(self, data: bytes) -> None:
        """Send bytes behind everything queued."""
        if self._queue or self._encrypted.queued_bytes > ENCRYPTED_BYTES_MAX:
            self._enqueue(data)
        elif self._encrypt(data):
            self.send_encrypted()

    def queue_chunks(self, chunks: "Sequence[bytes | FileRange]") -> None:
        """Queue an answer made of bytes and file ranges; `flush` sends it."""
        for chunk in chunks:
            self._enqueue(chunk)

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it."""
        if not self._queue:
            return
        while self._queue and not self.closed and self._encrypted.queued_bytes <= ENCRYPTED_BYTES_MAX:
            if not self._encrypt_front():
                return
            self.send_encrypted()
        # Whatever the socket did not take brings us back here when it has.

    def send_encrypted(self) -> None:
        """Send what TLS has to say: data, or its own messages."""
        if self._outgoing.pending and not self.closed:
            self._encrypted.send_bytes(self._outgoing.read())

    def close(self) -> None:
        """Stop sending and give the descriptor back."""
        self._queue.clear()
        self._queued_plain_bytes = 0
        self._encrypted.close()

    def _enqueue(self, item: bytes | FileRange) -> None:
        if not self.closed:
            self._queue.append((item, 0))
            if isinstance(item, bytes):
                self._queued_plain_bytes += len(item)

    def _encrypt_front(self) -> bool:
        """Encrypt the front of the queue, up to a piece; False if the connection failed."""
        pieces: list[bytes] = []
        room = PIECE_BYTES
        try:
            while self._queue and room > 0:
                item, done = self._queue[0]
                size = len(item) if isinstance(item, bytes) else item.size_bytes
                take = min(room, size - done)
                if isinstance(item, bytes):
                    pieces.append(item if take == size else item[done : done + take])
                    self._queued_plain_bytes -= take
                else:
                    piece = item.file.read(item.position + done, take)
                    if len(piece) != take:
                        raise OSError("a file range ended before its size")
                    pieces.append(piece)
                room -= take
                if done + take == size:
                    self._queue.popleft()
                else:
                    self._queue[0] = (item, done + take)
        except OSError:
            self._on_failed()
            return False
        return self._encrypt(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _encrypt(self, data: bytes) -> bool:
        if not data:
            return True
        try:
            self._tls.write(data)
        except ssl.SSLError:
            self._on_failed()
            return False
        return True

"""The sending side of a plain TCP connection.

Answers are written straight to the socket, not through the transport, so that file ranges go out with
sendfile. What the socket does not take at once stays queued, in order, until the loop says that it is
writable. The descriptor is a duplicate of the transport's, because an event loop lets nobody else watch its
own.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

SENDFILE_BYTES_MAX = 1 << 30
#: bytes objects handed to one system call at most
VIEWS_PER_CALL = 64
#: up to this size reading and sending once is cheaper than header, sendfile and trailer
SMALL_ANSWER_BYTES = 32 << 10


class RangeFile(Protocol):
    """A file that can be sent from."""

    def fileno(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class FileRange(Protocol):
    """A range of a file to send."""

    @property
    def file(self) -> RangeFile: ...

    @property
    def position(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


def _read_together(chunks: "Sequence[bytes | FileRange]", size: int) -> bytes:
    """An answer as one piece; raises OSError if a file does not hold all of its range."""
    answer = b"".join(c if isinstance(c, bytes) else c.file.read(c.position, c.size_bytes) for c in chunks)
    if len(answer) != size:
        raise OSError("a file range ended before its size")
    return answer


class SocketOutput:
    """Sends bytes and file ranges in order."""

    __slots__ = (
        "_loop",
        "_on_drained",
        "_on_failed",
        "_queue",
        "_socket",
        "_watching",
        "closed",
        "queued_bytes",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        on_drained: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._queue: deque[tuple[memoryview | FileRange, int]] = deque()
        self._watching = False
        #: bytes that wait in memory; ranges of files take none
        self.queued_bytes = 0
        self.closed = False

    def send_bytes(self, data: bytes) -> None:
        """Send bytes behind everything queued."""
        if self.closed:
            return
        sent = 0
        if not self._queue:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._fail()
                return
            if sent == len(data):
                return
            self._watch()
        self._enqueue(memoryview(data)[sent:])

    def queue_chunks(self, chunks: "Sequence[bytes | FileRange]") -> None:
        """Queue an answer made of bytes and file ranges; `flush` sends it."""
        size = 0
        for chunk in chunks:
            size += len(chunk) if isinstance(chunk, bytes) else chunk.size_bytes
        if size <= SMALL_ANSWER_BYTES:
            try:
                self._enqueue(memoryview(_read_together(chunks, size)))
            except OSError:
                # This may be the turn of another connection, which wrote what this one waited for.
                self._fail()
            return
        for chunk in chunks:
            self._enqueue(memoryview(chunk) if isinstance(chunk, bytes) else chunk)

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it."""
        if self._queue and not self._watching:
            self._pump()

    def close(self) -> None:
        """Stop sending and give the descriptor back."""
        self.closed = True
        if self._watching:
            self._loop.remove_writer(self._socket.fileno())
            self._watching = False
        self._queue.clear()
        self.queued_bytes = 0
        self._socket.close()

    def _enqueue(self, item: memoryview | FileRange) -> None:
        if not self.closed:
            self._queue.append((item, 0))
            if isinstance(item, memoryview):
                self.queued_bytes += len(item)

    def _watch(self) -> None:
        if not self._watching and not self.closed:
            self._watching = True
            self._loop.add_writer(self._socket.fileno(), self._pump)

    def _pump(self) -> None:
        """Send until the queue is empty or the socket is full."""
        queue = self._queue
        try:
            while queue:
                item, done = queue[0]
                if isinstance(item, memoryview):
                    self._send_front(item)
                    continue
                sent = os.sendfile(
                    self._socket.fileno(),
                    item.file.fileno(),
                    item.position + done,
                    min(item.size_bytes - done, SENDFILE_BYTES_MAX),
                )
                if sent == 0:
                    raise OSError("a file range ended before its size")
                if done + sent == item.size_bytes:
                    queue.popleft()
                else:
                    queue[0] = (item, done + sent)
        except BlockingIOError:
            self._watch()
            return
        except OSError:
            self._fail()
        if self._watching:
            self._watching = False
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(self._socket.fileno())
            self._on_drained()

    def _fail(self) -> None:
        """The peer is gone, or a file could not be read: nothing more can be sent in order."""
        self.closed = True
        self._queue.clear()
        self.queued_bytes = 0
        self._loop.call_soon(self._on_failed)

    def _send_front(self, first: memoryview) -> None:
        """Send the bytes at the front of the queue, up to the next file range, with one call."""
        queue = self._queue
        views = [first]
        for item, _ in islice(queue, 1, VIEWS_PER_CALL):
            if not isinstance(item, memoryview):
                break
            views.append(item)
        # A file range that follows belongs to the same answer: let them share a packet.
        flags = socket.MSG_MORE if len(queue) > len(views) else 0
        sent = self._socket.send(first, flags) if len(views) == 1 else self._socket.sendmsg(views, (), flags)
        self.queued_bytes -= sent
        while sent:
            view, _ = queue[0]
            assert isinstance(view, memoryview)
            if sent < len(view):
                queue[0] = (view[sent:], 0)
                return
            sent -= len(view)
            queue.popleft()

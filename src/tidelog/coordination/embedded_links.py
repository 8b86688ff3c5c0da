"""The links between the processes that share an embedded store: who lives, and what changed, told at once.

Every session listens on a Unix socket in a folder beside the store's file, `<session>.sock`, and is connected
with every other. A line is a message:

    hello <session> <pid> <timeout_ms>     the first line of whoever connects
    changed <sequence> <key> <key> …       a commit; keys are quoted as in a URL, `*` stands for all of them
    bye                                    the session was closed and its keys are gone
    (an empty line)                        I live

A killed process closes its sockets, whatever it was doing: the others see the end of the stream and find that
nobody listens there any more. A stopped one keeps them open and falls silent: after its timeout it counts as
gone. One thread does all of it; what to do about it is decided by the `Owner`.

A session that is to end because its process makes no progress falls silent at once, and its own thread ends
it as it would a peer's. Should that not succeed, the others take its silence for what it is.
"""

import contextlib
import errno
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from tidelog.coordination.embedded_file import Change, SessionRow

log = logging.getLogger(__name__)

EVERYTHING = "*"
_SUFFIX = ".sock"
_MESSAGE_BYTES_MAX = 16 * 1024
_OUTGOING_BYTES_MAX = 64 * 1024
_INCOMING_BYTES_MAX = 64 * 1024
_PATH_BYTES_MAX = 100
_RETRY_SECONDS = 0.01
_STALE_SECONDS = 60.0


class Owner(Protocol):
    """What the links tell; everything is called by the thread of the links."""

    def peer_changed(self, keys: list[str] | None, sequence: int) -> None:
        """Another process committed; None for keys that are not known."""

    def end_peer(self, row: SessionRow, *, silent_seconds: float) -> bool:
        """A peer is dead (0) or silent for longer than its timeout; False asks to be called again soon.

        Our own session is among them once it fell silent on purpose.
        """

    def look_around(self, *, slept: bool) -> list[SessionRow] | None:
        """A tick, or the end of a long sleep: the sessions there are, or None if ours is not among them."""

    def deliver(self) -> None:
        """Someone called `wake`."""

    def links_failed(self) -> None:
        """The links are closed because of an error in them; nothing will be told any more."""


class _Link:
    __slots__ = ("behind", "heard", "incoming", "outgoing", "peer", "socket")

    def __init__(self, connection: socket.socket, peer: SessionRow | None, now: float) -> None:
        self.socket = connection
        self.peer = peer
        self.heard = now
        self.incoming = b""
        self.outgoing = b""
        #: changes were left out because the peer does not read
        self.behind = False


class Links:
    """The sockets of one session and the thread that serves them."""

    def __init__(self, folder: Path, session: SessionRow, owner: Owner) -> None:
        self._session = session
        self._owner = owner
        self._folder = folder
        # Whoever can connect takes part: the folder is for this user alone, also one from before.
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            with contextlib.suppress(PermissionError):
                folder.chmod(0o700)
        # Unix sockets have short names; a long one goes through a descriptor of its folder.
        self._folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._tick_seconds = max(session.timeout_ms / 6000, 0.02)
        self._links: set[_Link] = set()
        self._ending: dict[str, tuple[SessionRow, float]] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._stopping = False
        self._silent = False
        self._listener = self._listen()
        for readable in (self._wake_reader, self._listener):
            readable.setblocking(False)
            self._selector.register(readable, selectors.EVENT_READ, None)
        self._wake_writer.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="tidelog-store", daemon=True)

    def __repr__(self) -> str:
        peers = sorted(link.peer.id for link in self._links if link.peer is not None)
        return f"<Links {self._session.id} peers={peers}>"

    # -- for any thread

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread is there to tell anything."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Have `owner.deliver` called soon; a full pipe is a wake-up that waits already."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def tell(self, change: Change) -> None:
        """Tell every peer of a commit."""
        message = _changed_message(change)
        with self._lock:
            for link in self._links:
                self._send(link, message)

    def say_bye(self) -> None:
        with self._lock:
            for link in self._links:
                self._send(link, b"bye\n")

    def fall_silent(self) -> None:
        """Tell nobody any more that we live, and have our own session ended."""
        self._silent = True
        self.wake()

    def stop(self) -> None:
        """End the thread and take the socket away; nothing is called any more once this returns."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        elif not self._thread.is_alive():
            self._close_all()

    # -- opening and connecting

    def _address(self, name: str) -> str:
        path = str(self._folder / name)
        if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
            return path
        return f"/proc/self/fd/{self._folder_descriptor}/{name}"

    def _listen(self) -> socket.socket:
        # Under its final name a socket always listens, so one that refuses belongs to nobody.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name = self._session.id + _SUFFIX
            listener.bind(self._address(name + ".new"))
            listener.listen(128)
            (self._folder / (name + ".new")).rename(self._folder / name)
        except OSError:
            listener.close()
            os.close(self._folder_descriptor)
            raise
        return listener

    def connect(self, row: SessionRow) -> bool:
        """Make a link with a session; False if its process is dead."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address(row.id + _SUFFIX))
        except OSError as error:
            connection.close()
            # A full queue (EAGAIN) is a process that hangs: there, but not to be talked to.
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
        link = _Link(connection, row, time.monotonic())
        hello = f"hello {self._session.id} {self._session.pid} {self._session.timeout_ms}\n"
        with self._lock:
            self._links.add(link)
            self._selector.register(connection, selectors.EVENT_READ, link)
            self._send(link, hello.encode())
        return True

    def discard(self, session: str) -> None:
        """Remove the socket that a dead session left behind."""
        with contextlib.suppress(OSError):
            (self._folder / (session + _SUFFIX)).unlink()

    def sweep(self, living: Iterable[str]) -> None:
        """Remove sockets of processes that were killed before they had a session."""
        names = {session + _SUFFIX for session in living}
        now = time.time()
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.name not in names and now - path.lstat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    # -- the thread

    def _run(self) -> None:
        failed = False
        try:
            self._serve()
        except Exception:
            failed = not self._stopping
            log.exception("the links of the store failed; a new session will have new ones")
        finally:
            self._close_all()
        if failed:
            self._owner.links_failed()

    def _serve(self) -> None:
        next_tick = last_turn = time.monotonic()
        while not self._stopping:
            wait = max(0.0, min(next_tick, self._next_silence()) - time.monotonic())
            events = self._selector.select(min(wait, _RETRY_SECONDS) if self._ending else wait)
            now = time.monotonic()
            # Longer away than a peer may be silent: it is we who slept, so nobody is judged by the clock.
            slept = now - last_turn > self._tick_seconds * 3
            if slept:
                for link in self._links:
                    link.heard = now
            last_turn = now
            for key, mask in events:
                self._handle(key, mask, now)
            if slept or now >= next_tick:
                if not self._tick(now, slept):
                    return
                next_tick = now + self._tick_seconds
            self._judge(now)
            self._end_peers()

    def _handle(self, key: selectors.SelectorKey, mask: int, now: float) -> None:
        if key.data is not None:
            if mask & selectors.EVENT_WRITE:
                self._flush(key.data)
            if mask & selectors.EVENT_READ:
                self._receive(key.data, now)
        elif key.fileobj is self._listener:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                link = _Link(connection, None, now)
                with self._lock:
                    self._links.add(link)
                    self._selector.register(connection, selectors.EVENT_READ, link)
        else:
            with contextlib.suppress(OSError):
                self._wake_reader.recv(4096)
            if self._silent:
                self._ending.setdefault(self._session.id, (self._session, 0.0))
            self._owner.deliver()

    def _tick(self, now: float, slept: bool) -> bool:
        rows = self._owner.look_around(slept=slept)
        if rows is None:
            return False
        linked = {link.peer.id for link in self._links if link.peer is not None}
        for row in rows:
            if row.id not in linked and row.id != self._session.id and row.id not in self._ending:
                self._verify(row)
        with self._lock:
            for link in () if self._silent else self._links:
                if not link.outgoing:
                    self._send(link, b"\n")
        return True

    def _next_silence(self) -> float:
        """When the next peer has been silent for as long as its timeout, unless it speaks before."""
        return min(
            (last + peer.timeout_ms / 1000 for peer, last in self._last_heard().items()), default=math.inf
        )

    def _judge(self, now: float) -> None:
        for peer, last in self._last_heard().items():
            if now - last >= peer.timeout_ms / 1000:
                self._ending.setdefault(peer.id, (peer, last))

    def _last_heard(self) -> dict[SessionRow, float]:
        # Of several links with one peer, the one it uses counts.
        heard: dict[SessionRow, float] = {}
        for link in self._links:
            if link.peer is not None:
                heard[link.peer] = max(link.heard, heard.get(link.peer, 0.0))
        return heard

    def _end_peers(self) -> None:
        for session, (row, silent_since) in list(self._ending.items()):
            if silent_since and self._last_heard().get(row, 0.0) > silent_since:
                del self._ending[session]  # it was slow, and spoke before anybody ended it
                continue
            silent_seconds = time.monotonic() - silent_since if silent_since else 0.0
            if self._owner.end_peer(row, silent_seconds=silent_seconds):
                del self._ending[session]
                self.discard(session)
                for link in [link for link in self._links if link.peer and link.peer.id == session]:
                    self._drop(link)

    def _receive(self, link: _Link, now: float) -> None:
        try:
            data = link.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            if link.peer is not None:
                self._verify(link.peer)
            return
        link.heard = now
        *lines, link.incoming = (link.incoming + data).split(b"\n")
        for line in lines:
            if line:
                self._understand(link, line.decode())
        if len(link.incoming) > _INCOMING_BYTES_MAX:
            self._drop(link)

    def _understand(self, link: _Link, line: str) -> None:
        word, *arguments = line.split(" ")
        if word == "hello":
            session, pid, timeout_ms = arguments
            link.peer = SessionRow(session, int(pid), int(timeout_ms))
        elif word == "changed":
            sequence, *quoted = arguments
            keys = None if quoted == [EVERYTHING] else [unquote(key) for key in quoted if key]
            self._owner.peer_changed(keys, int(sequence))
        elif word == "bye":
            link.peer = None
        else:
            log.warning("a line that nobody understands from %r: %r", link.peer, line)

    def _verify(self, row: SessionRow) -> None:
        """Find out whether a peer whose link ended, or was never made, lives."""
        if not self.connect(row):
            self._ending[row.id] = (row, 0.0)

    # -- sending; with the lock held

    def _send(self, link: _Link, message: bytes) -> None:
        if link.outgoing:
            if len(link.outgoing) + len(message) > _OUTGOING_BYTES_MAX:
                link.behind = True
            else:
                link.outgoing += message
            return
        try:
            sent = link.socket.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the end of the stream says the same, and is handled by the thread
        if sent < len(message):
            link.outgoing = message[sent:]
            self._selector.modify(link.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, link)
            if threading.current_thread() is not self._thread:
                self.wake()

    def _flush(self, link: _Link) -> None:
        with self._lock:
            if link not in self._links:
                return
            message, link.outgoing = link.outgoing, b""
            self._selector.modify(link.socket, selectors.EVENT_READ, link)
            self._send(link, message)
            if link.behind and not link.outgoing:
                link.behind = False
                self._send(link, f"changed 0 {EVERYTHING}\n".encode())

    # -- closing

    def _drop(self, link: _Link) -> None:
        with self._lock:
            if link in self._links:
                self._links.discard(link)
                self._selector.unregister(link.socket)
                link.socket.close()

    def _close_all(self) -> None:
        with self._lock:
            links, self._links = self._links, set()
        if self._folder_descriptor < 0:
            return
        for link in links:
            link.socket.close()
        self.discard(self._session.id)
        self._listener.close()
        self._wake_reader.close()
        self._wake_writer.close()
        self._selector.close()
        os.close(self._folder_descriptor)
        self._folder_descriptor = -1


def _changed_message(change: Change) -> bytes:
    message = f"changed {change.sequence} {' '.join(quote(key) for key in change.keys)}\n".encode()
    if len(message) > _MESSAGE_BYTES_MAX:
        return f"changed {change.sequence} {EVERYTHING}\n".encode()
    return message

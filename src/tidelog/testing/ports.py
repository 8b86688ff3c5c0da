"""Ports for test brokers that stay theirs while the broker is down.

A port that the system picks is one it also gives to outgoing connections, so it may be gone when a killed
broker comes back. These are from below that range, and a lock file keeps other test processes of this user
away from a port until its reservation is closed or the process ends.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

PORT_FIRST = 20_000
PORT_LAST = 31_999
ATTEMPTS_MAX = 1_000


class ReservedPort:
    """A port of 127.0.0.1 that was free and is promised to the holder."""

    def __init__(self) -> None:
        self._lock: int | None = None
        self.port = self._reserve()

    def __repr__(self) -> str:
        return f"<ReservedPort {self.port}{'' if self._lock is not None else ' given back'}>"

    def close(self) -> None:
        """Give the port back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _reserve(self) -> int:
        folder = Path(tempfile.gettempdir()) / f"tidelog-test-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        for _ in range(ATTEMPTS_MAX):
            port = random.randint(PORT_FIRST, PORT_LAST)
            lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                os.close(lock)
                continue
            self._lock = lock
            return port
        raise OSError(f"no free port of 127.0.0.1 found in {ATTEMPTS_MAX} attempts")

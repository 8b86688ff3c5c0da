"""Who wants to hear of which key; shared by the adapters."""

import threading
from collections.abc import Callable, Iterable

Listener = Callable[[], None]


class Watches:
    """Listeners by watched key; safe to use from several threads."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Watches {sorted(self._listeners)}>"

    def add(self, key: str, listener: Listener) -> None:
        with self._lock:
            self._listeners.setdefault(key, []).append(listener)

    def keys(self) -> list[str]:
        with self._lock:
            return list(self._listeners)

    def touched_by(self, keys: Iterable[str]) -> list[str]:
        """The watched keys that a change of `keys` concerns: themselves and the folders they are in."""
        with self._lock:
            if not self._listeners:
                return []
            names = {name for key in keys for name in (key, key[: key.rfind("/") + 1])}
            return [watched for watched in self._listeners if watched in names]

    def listeners(self, key: str) -> list[Listener]:
        with self._lock:
            return list(self._listeners.get(key, ()))

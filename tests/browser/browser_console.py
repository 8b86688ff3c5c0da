"""A console that listens on a free port, in a thread of the test process; and where the browser is."""

import shutil
import socket
import threading
from types import TracebackType

from tidelog.console.console import ConsoleSettings
from tidelog.console.serving import listen, make_server

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0


def chromium_path() -> str | None:
    """The browser of this machine, if it has one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


class RunningConsole:
    """A console from `__enter__` to `__exit__`; `address` is for the browser."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self._settings = ConsoleSettings(bootstrap, poll_seconds=1.0, **settings)  # type: ignore[arg-type]
        self._socket: socket.socket | None = None

    def __enter__(self) -> "RunningConsole":
        ready = threading.Event()
        self._socket = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = make_server(self._settings, ready.set)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        assert ready.wait(START_SECONDS_MAX), "the console did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS_MAX)

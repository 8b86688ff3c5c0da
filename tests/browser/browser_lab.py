"""The lab's page on a free port, in a thread of the test process, with a tour that is forgotten."""

import threading
from types import TracebackType

from tidelog.console.serving import Server, listen
from tidelog.lab.page.serving import Switch

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 90.0


class ForgottenTour:
    """Progress that no file keeps."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def finish(self, name: str) -> None:
        self.done.append(name)


class RunningLab:
    """The page from `__enter__` to `__exit__`; `address` is for the browser, `stage` has the session."""

    def __enter__(self) -> "RunningLab":
        ready = threading.Event()
        listening = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.tour = ForgottenTour()
        self._switch = Switch(progress=self.tour)
        self.stage = self._switch.stage
        self._server = Server(self._switch, self._switch, ready.set)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        assert ready.wait(START_SECONDS_MAX), "the page did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS_MAX)
        self._switch.close()

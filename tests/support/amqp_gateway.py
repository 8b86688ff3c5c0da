"""An AMQP gateway before a running cluster: in a thread of this process, or as a process to kill."""

import asyncio
import ssl
import threading
from types import TracebackType

from tests.support.child_programs import environment
from tidelog.client.client_settings import ClientSettings
from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.limits import Limits
from tidelog.gateways.amqp.serving import serve
from tidelog.testing.serving_command import ServingCommand

START_SECONDS_MAX = 40.0
STOP_SECONDS_MAX = 30.0


class RunningGateway:
    """A gateway that runs from `__enter__` to `__exit__`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self._settings = ClientSettings.from_options({"bootstrap.servers": bootstrap, **(options or {})})
        self._limits = limits
        self._tls = tls
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.gateway: Gateway | None = None
        self.port = 0

    def __enter__(self) -> "RunningGateway":
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError("the gateway did not start in time")
        if self._fault is not None:
            raise self._fault
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(STOP_SECONDS_MAX)
        assert not self._thread.is_alive(), "the gateway did not stop in time"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as fault:
            self._fault = fault
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.gateway = Gateway(self._settings, limits=self._limits)
        await serve(self.gateway, "127.0.0.1", 0, tls=self._tls, ready=self._is_ready, stopped=self._stopped)

    def _is_ready(self, port: int) -> None:
        self.port = port
        self._ready.set()


class GatewayProcess(ServingCommand):
    """`tidelog gateway amqp` as a process that can be killed; it comes back at the same port."""

    def __init__(self, bootstrap: str, *options: str) -> None:
        super().__init__(("gateway", "amqp"), bootstrap, options=options, environment=environment())

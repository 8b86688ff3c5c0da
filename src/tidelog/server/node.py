"""A running broker: sockets bound, logs open, requests served; and its clean end."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.model.addresses import EVERYWHERE, address_text
from tidelog.model.errors import Refused
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings, Listener
from tidelog.server.clock import SystemClock
from tidelog.server.connection import Connection
from tidelog.server.disk_checks import DiskChecks
from tidelog.server.peers import AsyncPeers
from tidelog.server.socket_server import ServedBroker, SocketServer
from tidelog.server.watchdog import Watchdog
from tidelog.server.worker_threads import WorkerThreads
from tidelog.storage.disk import OsDisk

if TYPE_CHECKING:
    from tidelog.security.http_credentials import HttpCredentials
    from tidelog.security.listeners import ListenerSecurity
    from tidelog.server.metrics_endpoint import MetricsEndpoint
    from tidelog.server.peer_login import PeerSecurity

log = logging.getLogger(__name__)

#: threads that check passwords and tokens
AUTHENTICATION_THREADS = 2
#: threads that call the coordination store: one for calls, one for the end of a session whose calls hang
STORE_THREADS = 2
#: threads that check produced batches which take long: one for giants, one for the others
CHECKING_THREADS = 2
#: how often per stall limit a disk is asked that is suspected to hang
DISK_CHECKS_PER_STALL = 6
STOP_GRACE_SECONDS = 2.0
DESCRIPTORS_WANTED = 1 << 16
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


SECURITY_REMEDY = "docs/security.md has the settings of secured listeners"


class ListenError(OSError):
    """A listener cannot be set up; `remedy` says what to do about it."""

    def __init__(self, number: int | None, message: str, remedy: str) -> None:
        super().__init__(number, message)
        self.remedy = remedy


class NotRegistered(OSError):
    """The cluster did not take the broker in; the message says why."""


class ReadyInfo(NamedTuple):
    """Where a broker that is ready can be reached, and where its data is."""

    bootstrap: str
    node_id: int
    cluster_id: str
    log_dirs: tuple[str, ...]
    #: where the metrics are, if anywhere
    metrics: str = ""


class Node:
    """One broker process's inside: start it, stop it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.broker: Broker | None = None
        self.socket_server: SocketServer | None = None
        self._peers: AsyncPeers | None = None
        #: called with the reason when the broker cannot go on
        self.on_fatal: Callable[[str], None] = log.critical
        self._servers: list[asyncio.Server] = []
        self._workers: WorkerThreads | None = None
        self._gatekeepers: WorkerThreads | None = None
        self._store_workers: WorkerThreads | None = None
        self._checkers: WorkerThreads | None = None
        self._watchdog: Watchdog | None = None
        self._stopping = False
        self.metrics: MetricsEndpoint | None = None

    async def start(self) -> ReadyInfo:
        """Bind, recover, serve."""
        raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        if self.settings.without_effect:
            names = ", ".join(self.settings.without_effect)
            log.warning("settings of Kafka that have no effect here (see docs/settings.md): %s", names)
        secured = _secured_listeners(self.settings)
        bound = [(listener, _bind(listener, self.settings)) for listener in self.settings.listeners]
        try:
            endpoints = _advertised(self.settings, bound)
            self._workers = WorkerThreads(loop, self.settings.get_int("background.threads"))
            self._store_workers = WorkerThreads(loop, STORE_THREADS)
            self._checkers = WorkerThreads(loop, CHECKING_THREADS)
            if secured:
                self._gatekeepers = WorkerThreads(loop, AUTHENTICATION_THREADS)
            clock = SystemClock()
            peer_security = _peer_security(self.settings)
            self._peers = AsyncPeers(loop, self.settings.node_id, peer_security)
            self.broker = broker = Broker(
                self.settings,
                clock=clock,
                random=SystemRandom(),
                background=self._workers,
                disk=OsDisk(),
                endpoints=endpoints,
                peers=self._peers,
                authentication_background=self._gatekeepers,
                store_background=self._store_workers,
                check_background=self._checkers,
                on_fatal=self.on_fatal,
                on_lapsed=self._let_everybody_go,
            )
            self._peers.find_endpoint = lambda broker_id: broker.inter_broker_endpoint(broker_id)
            if peer_security is not None:
                peer_security.find_settings = lambda: broker.settings.current
            _count_unexpected(loop, broker)
            # Registering may have to wait and try again, so the timers run from here on.
            self.socket_server = socket_server = SocketServer(
                loop, broker.filled(ServedBroker), broker.make_dispatcher, clock
            )
            socket_server.secured = tuple(secured.values())
            await self._open_metrics(broker, socket_server)
            self._watch(self.broker, self._workers)
            await self._register(self.broker)
        except BaseException:
            self._undo_start(bound)
            raise
        backlog = self.settings.get_int("socket.listen.backlog.size")
        for listener, sock in bound:
            self._servers.append(
                await loop.create_server(
                    _factory(socket_server, listener.name, secured.get(listener.name)),
                    sock=sock,
                    backlog=backlog,
                )
            )
        self._workers.run(Broker.warm, self._warmed)
        first = bound[0][0]
        endpoint = endpoints[first.name]
        host = "127.0.0.1" if endpoint.host in EVERYWHERE else endpoint.host
        return ReadyInfo(
            address_text(host, endpoint.port),
            self.broker.node_id,
            self.broker.image.cluster_id,
            self.settings.log_dirs,
            "" if self.metrics is None else self.metrics.url,
        )

    def _warmed(self, result: BaseException | None) -> None:
        """The schemas of messages are there: from now on this broker lives as long as it makes progress.

        Whoever needs one before that has the loop wait for its import, which is no hang, however long it
        takes on a busy machine.
        """
        if isinstance(result, BaseException):
            log.warning("importing the message schemas ahead of use failed: %s", result)
        if self.broker is not None and not self._stopping:
            liveness = self.broker.liveness
            liveness.start()
            log.info("a stall of more than %.1f s costs this broker its session", liveness.stall_ms / 1000)

    def _let_everybody_go(self) -> None:
        """The broker's session lapsed: its clients shall look for another."""
        if self.socket_server is not None:
            self.socket_server.let_everybody_go()

    def _undo_start(self, bound: list[tuple[Listener, socket.socket]]) -> None:
        """Let go of whatever a start that failed had taken."""
        for _, sock in bound:
            sock.close()
        if self.metrics is not None:
            self.metrics.close()
        if self.socket_server is not None:
            self.socket_server.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        if self.broker is not None:
            self.broker.leave_cluster()
        for workers in (self._workers, self._gatekeepers, self._store_workers, self._checkers):
            if workers is not None:
                workers.close()

    def _watch(self, broker: Broker, workers: WorkerThreads) -> None:
        """Make what watches over the progress of this broker; it begins when imports are over."""
        liveness = broker.liveness
        interval_seconds = liveness.stall_ms / DISK_CHECKS_PER_STALL / 1000
        checks = DiskChecks(
            lambda: [each.path for each in broker.log_directories.directories],
            workers.longest_seconds,
            interval_seconds=interval_seconds,
        )
        checks.prepare()
        liveness.disks = checks
        self._watchdog = Watchdog(liveness)
        self._watchdog.start()

    async def _open_metrics(self, broker: Broker, socket_server: SocketServer) -> None:
        """Serve metrics, where the settings say so; before registering, which may take a while."""
        if self.settings.get("tidelog.metrics.port") is None:
            return
        from tidelog.broker.telemetry.health import Health
        from tidelog.server.metrics_endpoint import MetricsEndpoint

        host, port = (
            self.settings.get_str("tidelog.metrics.host"),
            self.settings.get_int("tidelog.metrics.port"),
        )
        self.metrics = MetricsEndpoint(
            socket_server,
            broker.node_id,
            broker.filled(Health),
            broker.scrape,
            broker.jobs,
            _metrics_credentials(self.settings, host),
        )
        try:
            await self.metrics.start(host, port)
        except OSError as fault:
            raise ListenError(
                fault.errno or errno.EINVAL,
                f"cannot serve metrics on {address_text(host, port)}: {fault.strerror or fault}",
                "another --metrics-port (tidelog.metrics.port), or stop what uses this one",
            ) from fault

    @staticmethod
    async def _register(broker: Broker) -> None:
        """Make the broker known to its cluster before the first client connects."""
        registered: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        broker.register(registered.set_result)
        refused = await registered
        if refused is not None:
            raise NotRegistered(refused.message or refused.code.name)

    async def stop(self) -> None:
        """Hand leadership over, take no more requests, finish what is under way, close the logs cleanly."""
        self._stopping = True
        if self.metrics is not None:
            self.metrics.stopping = True
        if self.broker is not None:
            handed_over = asyncio.Event()
            self.broker.hand_over(handed_over.set)
            await handed_over.wait()
        for server in self._servers:
            server.close()
        if self.metrics is not None:
            self.metrics.close()
        if self.socket_server is not None:
            self.socket_server.close()
        if self._peers is not None:
            self._peers.close()
        if self.broker is not None:
            self.broker.stop_chores()
        if self._watchdog is not None:
            self._watchdog.stop()
        assert self._workers is not None
        assert self._store_workers is not None
        working = asyncio.gather(self._workers.drain(), self._store_workers.drain())
        try:
            await asyncio.wait_for(working, STOP_GRACE_SECONDS * 15)
        finally:
            if self.broker is not None:
                self.broker.close()
            self._workers.close()
            self._store_workers.close()
            for others in (self._gatekeepers, self._checkers):
                if others is not None:
                    others.close()


def _count_unexpected(loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
    """Have errors that nobody was prepared for counted, besides being logged by the loop."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        broker.jobs.unexpected(context.get("exception"))

    loop.set_exception_handler(handle)


def _metrics_credentials(settings: BrokerSettings, host: str) -> "HttpCredentials | None":
    """Who may read the metrics; None for everybody. Raises ListenError for a file that cannot be used."""
    path = settings.get("tidelog.metrics.credentials.file")
    if not path:
        if host not in LOOPBACK_HOSTS:
            log.warning(
                "everybody who reaches %s can read the metrics: set tidelog.metrics.credentials.file", host
            )
        return None
    from tidelog.security.http_credentials import CredentialsUnusable, HttpCredentials

    try:
        return HttpCredentials(Path(str(path)))
    except CredentialsUnusable as fault:
        raise ListenError(
            errno.EINVAL,
            f"tidelog.metrics.credentials.file: {fault}",
            f"'chmod 600 {path}'; docs/metrics.md says what is in it",
        ) from fault


def _secured_listeners(settings: BrokerSettings) -> "dict[str, ListenerSecurity]":
    """What the listeners that are not plain ask for; raises ListenError where that cannot work."""
    names = [
        each.name for each in settings.listeners if settings.security_protocols[each.name] != "PLAINTEXT"
    ]
    if not names:
        return {}
    from tidelog.security.listeners import ListenerSecurity

    secured = {}
    for name in names:
        try:
            secured[name] = ListenerSecurity(settings, name)
        except ValueError as fault:
            raise ListenError(
                errno.EINVAL, f"the listener {name} cannot be set up: {fault}", SECURITY_REMEDY
            ) from fault
    return secured


def _peer_security(settings: BrokerSettings) -> "PeerSecurity | None":
    """What the links to other brokers are made with; None where they are plain."""
    listener = settings.inter_broker_listener_name
    if settings.security_protocols[listener] == "PLAINTEXT":
        return None
    from tidelog.server.peer_login import PeerSecurity

    try:
        return PeerSecurity(settings)
    except ValueError as fault:
        raise ListenError(
            errno.EINVAL, f"brokers cannot reach each other by {listener}: {fault}", SECURITY_REMEDY
        ) from fault


def _factory(
    socket_server: SocketServer, listener_name: str, security: "ListenerSecurity | None"
) -> Callable[[], Connection]:
    if security is not None and security.encrypted:
        from tidelog.server.tls_connection import TlsConnection

        return lambda: TlsConnection(socket_server, security)
    return lambda: Connection(socket_server, listener_name, security)


def _bind(listener: Listener, settings: BrokerSettings) -> socket.socket:
    """Take a listener's address without accepting connections yet."""
    host = listener.host or None
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit the sizes of their buffers.
        for option, name in (
            (socket.SO_SNDBUF, "socket.send.buffer.bytes"),
            (socket.SO_RCVBUF, "socket.receive.buffer.bytes"),
        ):
            if settings.get_int(name) > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, settings.get_int(name))
        sock.bind(address)
    except OSError as fault:
        sock.close()
        raise ListenError(
            fault.errno,
            f"cannot listen on {listener}: {fault.strerror}",
            "another --port (0 picks a free one), or stop what uses this one",
        ) from fault
    sock.setblocking(False)
    return sock


def _advertised(settings: BrokerSettings, bound: list[tuple[Listener, socket.socket]]) -> dict[str, Endpoint]:
    """The addresses clients are told; port 0 becomes the port the system chose."""
    ports = {listener.name: sock.getsockname()[1] for listener, sock in bound}
    endpoints = {}
    for listener in settings.advertised_listeners:
        host = listener.host
        if host in EVERYWHERE:
            host = socket.gethostname()
        endpoints[listener.name] = Endpoint(host, listener.port or ports[listener.name])
    return endpoints


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

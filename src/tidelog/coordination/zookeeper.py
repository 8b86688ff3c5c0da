"""The store in a ZooKeeper ensemble, through kazoo (the extra `zookeeper`; imported only when used).

A commit is one `multi`, so it happens as a whole. An open store is a ZooKeeper session: its ephemeral keys
are ephemeral znodes and go when ZooKeeper gives the session up. Every commit also writes the session's own
marker node, so a commit of a session that has ended fails in ZooKeeper itself, whatever the client believes.

When the connection is lost (a member of the ensemble died, the network was cut), kazoo finds another member.
Reads wait for that and are sent again. A commit whose answer was lost is not guessed at: the marker has the
token of the last commit, so after the reconnect it is known whether it happened, and it is sent again if not.
Only when no member answers in time, the outcome is `CommitUnknown`.

`load` reads many znodes, pipelined; a counter that every commit touches is read before and after, and the
load is made again if it moved. How keys and znodes correspond: `zookeeper_paths`.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL

from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    CommitUnknown,
    Conflict,
    Entry,
    SessionLost,
    StoreError,
    Write,
    check_writes,
)
from tidelog.coordination.watches import Listener, Watches
from tidelog.coordination.zookeeper_commit import (
    CheckVersion,
    Create,
    Delete,
    Operation,
    Plan,
    Seen,
    Set,
    needs_stat,
    plan,
)
from tidelog.coordination.zookeeper_paths import (
    COMMITS,
    SESSIONS,
    folder_of,
    folder_path,
    folders_above,
    is_folder,
    is_own,
    key_path,
    unescape,
)

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 18_000
CONNECTION_TIMEOUT_MS = 18_000
#: how often a commit is planned again because keys it replaces unconditionally kept changing
_ATTEMPTS_MAX = 50
#: how often a commit is sent; one above the server's jute.maxbuffer breaks the connection every time
_SENDS_MAX = 5
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
_LOST_CONNECTION = (ConnectionLoss, OperationTimeoutError, SessionMovedError)


@dataclass(frozen=True, slots=True)
class ZookeeperSecurity:
    """How to talk to an ensemble that wants TLS or SASL; files are PEM."""

    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    #: nodes may be used by whoever authenticated as their creator only
    set_acl: bool = False

    def client_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.tls:
            options |= {
                "use_ssl": True,
                "verify_certs": True,
                "check_hostname": self.check_hostname,
                "ca": self.truststore,
                "certfile": self.keystore,
                "keyfile": self.keystore,
                "keyfile_password": self.keystore_password,
            }
        if self.sasl_mechanism is not None:
            options["sasl_options"] = {
                "mechanism": self.sasl_mechanism,
                "service": "zookeeper",
                "principal": "zk-sasl-md5",
                "username": self.sasl_username,
                "password": self.sasl_password,
            }
            if self.sasl_mechanism == "GSSAPI":
                options["sasl_options"] = {"mechanism": "GSSAPI", "service": "zookeeper"}
        if self.set_acl:
            options["default_acl"] = CREATOR_ALL_ACL
        return options


class ZookeeperStore:
    """A session of the store under the chroot of `connect` (`host:port,host:port/chroot`)."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connection_timeout_ms: int = CONNECTION_TIMEOUT_MS,
        security: ZookeeperSecurity | None = None,
    ) -> None:
        hosts, slash, chroot = connect.partition("/")
        self._connect = connect
        self._root = (slash + chroot).rstrip("/")
        self._timeout_seconds = connection_timeout_ms / 1000
        self._watches = Watches()
        self._armed: dict[str, _Watch] = {}
        self._lost_listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._connected = threading.Event()
        self._stop_lock = threading.Lock()
        self._stopped = False
        self._refused = False
        self._lost = False
        self._closed = False
        self._session_id = 0
        self._folders: set[str] = set()
        self._marker = f"{self._root}/{SESSIONS}/{secrets.token_hex(8)}"
        self._marker_version: int | None = 0
        self._counter = f"{self._root}/{COMMITS}"
        options = (security or ZookeeperSecurity()).client_options()
        self._client: Any = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            connection_retry=dict(_RECONNECT),
            logger=logging.getLogger("tidelog.kazoo"),
            **options,
        )
        self._granted_ms: int | None = None
        self._hear_of_timeout(self._client._connection)
        self._client.add_listener(self._state_changed)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._client.start_async()
        self._connected.wait(self._timeout_seconds)
        if self._refused:
            raise StoreError(f"{self._connect} did not accept the credentials")
        if not self._connected.is_set():
            raise StoreError(f"no ZooKeeper at {self._connect} answered within {self._timeout_seconds:.0f} s")
        for path in (self._counter, folder_of(self._marker)):
            self._read(lambda path=path: self._client.ensure_path_async(path))  # type: ignore[misc]
        # Sent again after a lost answer, the marker may be there already: it is ours, for its name is new.
        try:
            self._read(lambda: self._client.create_async(self._marker, b"", ephemeral=True))
        except NodeExistsError:
            log.debug("the marker of the session was created twice")
        self._session_id = self._client.client_id[0]

    def _hear_of_timeout(self, connection: Any) -> None:
        """Note the timeout that members grant, at every connection; kazoo keeps it to itself."""
        invoke = connection._invoke

        def noted(timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0:
                self._granted_ms = int(answer[0].time_out)
            return answer

        connection._invoke = noted

    def __repr__(self) -> str:
        state = "closed" if self._closed else "lost" if self._lost else "open"
        return f"<ZookeeperStore {self._connect} {state}>"

    # -- the port: reading

    @property
    def session_timeout_ms(self) -> int | None:
        return self._granted_ms

    def get(self, key: str) -> Entry | None:
        path = key_path(self._root, key)
        try:
            value, stat = self._read(lambda: self._client.get_async(path))
        except NoNodeError:
            return None
        return Entry(key, value, stat.version + 1)

    def load(self, prefix: str = "") -> list[Entry]:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            self._check_usable()
            try:
                # A connection keeps the order; `sync` brings the member that we read from up to date.
                synced = self._client.sync_async(self._root or "/")
                before = self._client.exists_async(self._counter)
                entries = self._load_all(prefix, deadline)
                after = self._client.exists_async(self._counter)
                self._result(synced, deadline)
                if self._result(before, deadline) == self._result(after, deadline):
                    return entries
            except _LOST_CONNECTION:
                self._wait_connected(deadline)
            if time.monotonic() > deadline:
                raise StoreError(f"{self._connect} kept changing while it was being read")

    def _load_all(self, prefix: str, deadline: float) -> list[Entry]:
        """Read level by level, everything of a level at once."""
        top = prefix[: prefix.rfind("/") + 1]
        folders = [(top, folder_path(self._root, top))]
        reads: list[tuple[str, Any]] = []
        while folders:
            listings = [(folder, path, self._client.get_children_async(path)) for folder, path in folders]
            folders = []
            for folder, path, listing in listings:
                for name in self._result_or_none(listing, deadline) or ():
                    below = f"{path.rstrip('/')}/{name}"
                    if not folder and is_own(name):
                        continue
                    if is_folder(name):
                        inner = f"{folder}{unescape(name[:-1])}/"
                        if inner.startswith(prefix) or prefix.startswith(inner):
                            folders.append((inner, below))
                    elif (key := folder + unescape(name)).startswith(prefix):
                        reads.append((key, self._client.get_async(below)))
        entries = []
        for key, read in reads:
            found = self._result_or_none(read, deadline)
            if found is not None:
                entries.append(Entry(key, found[0], found[1].version + 1))
        entries.sort()
        return entries

    # -- the port: writing

    def commit(self, writes: Sequence[Write | Check]) -> Committed | Conflict:
        check_writes(writes)
        deadline = time.monotonic() + self._timeout_seconds
        with self._commit_lock:
            for _ in range(_ATTEMPTS_MAX):
                self._check_usable()
                outcome = self._attempt(writes, deadline)
                if outcome is not None:
                    return outcome
        raise StoreError(f"{self._connect}: the keys of a commit kept changing underneath")

    def _attempt(self, writes: Sequence[Write | Check], deadline: float) -> Committed | Conflict | None:
        """Plan and send a commit; None asks for another attempt, as something changed in between."""
        seen = self._look_at([write.key for write in writes if needs_stat(write)], deadline)
        planned = plan(self._root, self._session_id, writes, seen)
        if isinstance(planned, Conflict):
            position = [write.key for write in writes].index(planned.key)
            return self._first_conflict(writes[: position + 1], deadline)
        self._ensure_folders(planned.created, deadline)
        failed = self._send(planned, deadline)
        if failed is None:
            self._remove_empty_folders(planned.deleted)
            return Committed(planned.versions)
        index, error = failed
        write = planned.writes[index]
        if isinstance(error, NoNodeError) and isinstance(planned.operations[index], Create):
            # Somebody removed a folder that had become empty.
            self._folders.difference_update(folders_above(self._root, planned.operations[index].path))
            return None
        if isinstance(error, NodeExistsError | NoNodeError | BadVersionError):
            # A transaction fails at its first operation that does not fit.
            return self._first_conflict([write], deadline)
        raise StoreError(f"{self._connect} refused to write {write.key}: {error!r}") from error

    def _first_conflict(self, writes: Sequence[Write | Check], deadline: float) -> Conflict | None:
        guarded = [write for write in writes if write.expected_version is not None]
        seen = self._look_at([write.key for write in guarded], deadline)
        for write in guarded:
            found = seen[write.key]
            version = ABSENT if found is None else found.version
            assert write.expected_version is not None
            if version != write.expected_version:
                return Conflict(write.key, write.expected_version, version)
        return None

    def _look_at(self, keys: Sequence[str], deadline: float) -> dict[str, Seen | None]:
        while True:
            stats = [(key, self._client.exists_async(key_path(self._root, key))) for key in keys]
            try:
                found = [(key, self._result(stat, deadline)) for key, stat in stats]
            except _LOST_CONNECTION:
                self._wait_connected(deadline)
                continue
            return {
                key: None if stat is None else Seen(stat.version + 1, stat.ephemeralOwner)
                for key, stat in found
            }

    def _send(self, planned: Plan, deadline: float) -> tuple[int, KazooException] | None:
        """Send the transaction until it is known to have happened (None) or what was in its way."""
        token = secrets.token_bytes(12)
        sent = 0
        while True:
            if sent >= _SENDS_MAX:
                raise StoreError(f"{self._connect} broke the connection {sent} times at {planned!r}")
            connected = self._connected.wait(max(0.0, deadline - time.monotonic()))
            self._check_usable()
            if not connected:
                self._marker_version = None
                kind = CommitUnknown if sent else StoreError
                raise kind(f"no ZooKeeper at {self._connect} can be reached")
            try:
                if self._marker_version is None or sent:
                    value, stat = self._result(self._client.get_async(self._marker), deadline)
                    self._marker_version = stat.version
                    if value == token:
                        return None
                sent += 1
                results = self._result(self._transaction(planned, token).commit_async(), deadline)
            except NoNodeError:
                self._lose()
                raise self._session_lost() from None
            except _LOST_CONNECTION:
                # kazoo may not have told us yet: do not spin until it has.
                self._connected.clear() if not self._client.connected else time.sleep(0.01)
                continue
            except StoreError as error:
                self._marker_version = None
                if isinstance(error, SessionLost) or not sent:
                    raise
                raise CommitUnknown(str(error)) from error
            failed = _first_failure(results)
            if failed is None:
                assert self._marker_version is not None
                self._marker_version += 1
                return None
            index, failure = failed
            if index >= 2:
                return index - 2, failure
            if isinstance(failure, NoNodeError) and index == 0:
                self._lose()
                raise self._session_lost()
            if not isinstance(failure, BadVersionError):
                raise StoreError(f"{self._connect} refused a commit: {failure!r}") from failure
            # An earlier commit whose outcome was not known has happened after all; look again.

    def _transaction(self, planned: Plan, token: bytes) -> Any:
        transaction = self._client.transaction()
        transaction.set_data(self._marker, token, self._marker_version)
        transaction.set_data(self._counter, b"")
        for operation in planned.operations:
            _add(transaction, operation)
        return transaction

    # -- folders

    def _ensure_folders(self, paths: Iterable[str], deadline: float) -> None:
        """Create the folders that new keys need; they mean nothing by themselves, so they come beforehand."""
        needed = {folder for path in paths for folder in folders_above(self._root, path)} - self._folders
        for depth in sorted({folder.count("/") for folder in needed}):
            level = [folder for folder in needed if folder.count("/") == depth]
            while True:
                created = [self._client.create_async(folder, b"") for folder in level]
                try:
                    for result in created:
                        self._result_unless(result, deadline, NodeExistsError)
                except _LOST_CONNECTION:
                    self._wait_connected(deadline)
                    continue
                break
        self._folders |= needed

    def _remove_empty_folders(self, deleted: Iterable[str]) -> None:
        """Try to remove the folders of deleted keys; one that is in use refuses, and nobody waits for it."""
        for folder in {folder_of(path) for path in deleted} - {self._root or "/"}:
            self._folders.discard(folder)
            self._client.delete_async(folder)

    # -- watches

    def watch(self, key: str, listener: Listener) -> None:
        self._check_usable()
        self._watches.add(key, listener)
        with self._lock:
            armed = self._armed.get(key)
            if armed is None:
                armed = self._armed[key] = _Watch(self, key)
        done = threading.Event()
        armed.arm(done.set)
        # Without a connection it is armed by the reconnect, which calls the listener too.
        while not done.wait(0.05) and self._connected.is_set():
            self._check_usable()

    def on_session_lost(self, listener: Listener) -> None:
        with self._lock:
            if not self._lost:
                self._lost_listeners.append(listener)
                return
        listener()

    def _fire(self, key: str) -> None:
        if not self._closed and not self._lost:
            for listener in self._watches.listeners(key):
                listener()

    # -- the session

    def lapse(self) -> None:
        # Stopping the client tells ZooKeeper; if nobody can be told, it hears nothing of us from here on.
        self._lose()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._connected.set()
        self._stop_client()

    def _stop_client(self) -> None:
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
            try:
                self._client.stop()
                self._client.close()
            except (KazooException, OSError) as error:
                log.warning("the connection to %s did not end cleanly: %s", self._connect, error)

    def _state_changed(self, state: str) -> None:
        """Called by kazoo's connection thread, which must not be held up."""
        if self._lost or self._closed:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
            with self._lock:
                armed = list(self._armed.values())
            for watch in armed:
                watch.arm(watch.fire)
            return
        self._connected.clear()
        if state == KazooState.LOST:
            if self._session_id:
                self._lose()
            elif self._client.client_state == KeeperState.AUTH_FAILED:
                self._refused = True
                self._connected.set()  # `_open` need not wait any longer

    def _lose(self) -> None:
        with self._lock:
            if self._lost or self._closed:
                return
            self._lost = True
            listeners, self._lost_listeners = self._lost_listeners, []
        self._connected.set()  # whoever waits for a connection need not any more
        log.warning("the session of this broker at %s has ended", self._connect)
        # A thread of its own: kazoo's would wait for itself to stop.
        threading.Thread(
            target=self._tell_lost, args=(listeners,), name="tidelog-store-lost", daemon=True
        ).start()

    def _tell_lost(self, listeners: list[Listener]) -> None:
        for listener in listeners:
            listener()
        self._stop_client()

    def _session_lost(self) -> SessionLost:
        return SessionLost(f"the session of this broker at {self._connect} has ended")

    # -- calls

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"{self._connect} is closed")
        if self._lost:
            raise self._session_lost()

    def _read(self, call: Callable[[], Any]) -> Any:
        """Make a call that may be made twice, through lost connections, until the deadline."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            self._check_usable()
            try:
                return self._result(call(), deadline)
            except _LOST_CONNECTION:
                self._wait_connected(deadline)

    def _wait_connected(self, deadline: float) -> None:
        """Wait for another member of the ensemble after a connection was lost."""
        time.sleep(0.01)
        connected = self._connected.wait(max(0.0, deadline - time.monotonic()))
        self._check_usable()
        if not connected:
            raise StoreError(f"no ZooKeeper at {self._connect} can be reached")

    def _result(self, result: Any, deadline: float) -> Any:
        """The answer to a call; what ends the session, or the patience, becomes an error of the port."""
        try:
            return result.get(timeout=max(0.05, deadline - time.monotonic()))
        except SessionExpiredError:
            self._lose()
            raise self._session_lost() from None
        except KazooTimeoutError as error:
            raise StoreError(f"no ZooKeeper at {self._connect} answered in time") from error
        except ConnectionClosedError as error:
            self._check_usable()
            raise StoreError(f"the connection to {self._connect} was closed") from error
        except AuthFailedError as error:
            raise StoreError(f"{self._connect} did not accept the credentials") from error
        except (NodeExistsError, NoNodeError, *_LOST_CONNECTION):
            raise
        except KazooException as error:
            raise StoreError(f"{self._connect} failed: {error!r}") from error

    def _result_or_none(self, result: Any, deadline: float) -> Any:
        try:
            return self._result(result, deadline)
        except NoNodeError:
            return None

    def _result_unless(self, result: Any, deadline: float, expected: type[KazooException]) -> None:
        try:
            self._result(result, deadline)
        except expected:
            return


class _Watch:
    """One watched key: armed, told once by ZooKeeper, armed again, and only then the listeners are called."""

    __slots__ = ("_children", "_key", "_path", "_store")

    def __init__(self, store: ZookeeperStore, key: str) -> None:
        self._store = store
        self._key = key
        self._children = key.endswith("/")
        root = store._root
        self._path = folder_path(root, key) if self._children else key_path(root, key)

    def fire(self) -> None:
        self._store._fire(self._key)

    def __call__(self, event: Any) -> None:
        """ZooKeeper says that something changed, or kazoo that the connection went."""
        if self._store._connected.is_set():
            self.arm(self.fire)

    def arm(self, then: Callable[[], None]) -> None:
        """Ask ZooKeeper to tell the next change; `then` is called once it has promised to."""
        client = self._store._client
        ask = client.get_children_async if self._children else client.exists_async
        ask(self._path, watch=self).rawlink(lambda result: self._asked(result, then))

    def _asked(self, result: Any, then: Callable[[], None]) -> None:
        if result.successful():
            then()
        elif isinstance(result.exception, NoNodeError):
            # A folder that nobody has put a key into yet can only be watched if it exists.
            ensured = self._store._client.ensure_path_async(self._path)
            ensured.rawlink(lambda made: self.arm(then) if made.successful() else None)
        # Otherwise the connection is gone, and coming back arms every watch.


def _add(transaction: Any, operation: Operation) -> None:
    match operation:
        case Create(path, value, ephemeral):
            transaction.create(path, value, ephemeral=ephemeral)
        case Set(path, value, version):
            transaction.set_data(path, value, version)
        case Delete(path, version):
            transaction.delete(path, version)
        case CheckVersion(path, version):
            transaction.check(path, version)


def _first_failure(results: Sequence[Any]) -> tuple[int, KazooException] | None:
    """The operation that made a transaction fail; the others only say that they were undone."""
    for index, result in enumerate(results):
        if isinstance(result, KazooException) and not isinstance(
            result, RolledBackError | RuntimeInconsistency
        ):
            return index, result
    return None

"""Logins with the cluster's own users, for servers that keep none: try a password, ask what its user may do.

A name and a password are tried on the cluster, as a client that logs in would; over the same kind of
connection the cluster is asked what this user may do with topics (KIP-430), so its authorizer decides, super
users and denials included. Answers are kept for LOGIN_SECONDS and RIGHTS_SECONDS: so long may a change of a
password or an ACL take. Wrong passwords slow down, for a name and for an address. Safe from any thread.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from tidelog.client.api_keys import METADATA
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, ClientFault, LinkFault
from tidelog.client.link import Link

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGIN_SECONDS = 60.0
RIGHTS_SECONDS = 30.0
LOGINS_MAX = 1_000
TOPICS_KEPT_MAX = 10_000
TOPICS_ASKED_MAX = 500
CHECK_TIMEOUT_MS = 5_000
NAME_CHARACTERS_MAX = 256
PASSWORD_CHARACTERS_MAX = 1_024
TRIES_MAX = 8
ADDRESS_TRIES_MAX = 60
TRIES_SECONDS = 60.0
TRIED_MAX = 10_000
CHECKS_AT_ONCE = 4


class Operation(IntEnum):
    """Kafka's operations on topics, by their numbers in ACLs."""

    READ = 3
    WRITE = 4
    DELETE = 6
    ALTER_CONFIGS = 11


class Why(Enum):
    """Why somebody is not let in."""

    WRONG = "wrong"
    HASTY = "hasty"
    UNREACHABLE = "unreachable"


class LoginRefused(Exception):
    """The text says why, and nothing of a password."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(slots=True)
class _Login:
    until: float
    proof: bytes
    #: by topic: what the user may do with it, and until when that is believed
    rights: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)


class ClusterLogins:
    """The users of one cluster."""

    def __init__(
        self,
        settings: ClientSettings,
        client_id: str,
        clock: Callable[[], float] = time.monotonic,
        logins_max: int = LOGINS_MAX,
    ) -> None:
        self._settings = replace(
            settings,
            client_id=client_id,
            request_timeout_ms=CHECK_TIMEOUT_MS,
            connection_timeout_ms=CHECK_TIMEOUT_MS,
        )
        self._clock = clock
        self._logins_max = logins_max
        self._lock = threading.Lock()
        self._logins: OrderedDict[str, _Login] = OrderedDict()
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._secret = secrets.token_bytes(32)
        self._at_once = threading.BoundedSemaphore(CHECKS_AT_ONCE)

    def __repr__(self) -> str:
        return f"<ClusterLogins logins={len(self._logins)}>"

    def check(self, name: str, password: str, address: str) -> None:
        """Raises LoginRefused where the cluster does not know them."""
        if not name or not password or len(name) > NAME_CHARACTERS_MAX or "\0" in name + password:
            raise LoginRefused(Why.WRONG, "a name and a password of the cluster are needed")
        if len(password) > PASSWORD_CHARACTERS_MAX:
            raise LoginRefused(Why.WRONG, f"a password has at most {PASSWORD_CHARACTERS_MAX} characters")
        proof = self._proof(name, password)
        now = self._clock()
        with self._lock:
            login = self._logins.get(name)
            if login is not None and login.until > now and hmac.compare_digest(login.proof, proof):
                return
        keys = {f"name {name} from {address}": TRIES_MAX, f"address {address}": ADDRESS_TRIES_MAX}
        self._refuse_hasty(keys)
        try:
            self._link(name, password).close()
        except AuthenticationFailed as fault:
            self._count_wrong(keys)
            raise LoginRefused(Why.WRONG, "the name or the password is wrong") from fault
        with self._lock:
            self._logins[name] = _Login(now + LOGIN_SECONDS, proof)
            self._logins.move_to_end(name)
            while len(self._logins) > self._logins_max:
                self._logins.popitem(last=False)

    def _link(self, name: str, password: str) -> Link:
        """A connection of this user's; a few at a time."""
        settings = replace(self._settings, sasl_username=name, sasl_password=password)
        if not self._at_once.acquire(timeout=CHECK_TIMEOUT_MS / 1000):
            raise LoginRefused(Why.HASTY, "too many logins at once")
        try:
            for host, port in settings.bootstrap_servers:
                try:
                    return Link.open(host, port, settings)
                except LinkFault:
                    continue
        finally:
            self._at_once.release()
        raise LoginRefused(Why.UNREACHABLE, "the cluster does not answer, so nobody can log in now")

    def _proof(self, name: str, password: str) -> bytes:
        """Known again in this process, and worth nothing outside of it."""
        return hmac.digest(self._secret, f"{name}\0{password}".encode(), hashlib.sha256)

    def _refuse_hasty(self, keys: Mapping[str, int]) -> None:
        oldest = self._clock() - TRIES_SECONDS
        with self._lock:
            for key, tries_max in keys.items():
                times = self._wrong.get(key, deque())
                while times and times[0] < oldest:
                    times.popleft()
                if len(times) >= tries_max:
                    raise LoginRefused(Why.HASTY, "too many wrong passwords; wait a minute")

    def _count_wrong(self, keys: Mapping[str, int]) -> None:
        with self._lock:
            for key, tries_max in keys.items():
                self._wrong.setdefault(key, deque(maxlen=tries_max)).append(self._clock())
                self._wrong.move_to_end(key)
            while len(self._wrong) > TRIED_MAX:
                self._wrong.popitem(last=False)

    # Rights

    def known_rights(self, name: str, topics: Iterable[str]) -> dict[str, int]:
        """Those rights of a user that were asked for lately, as bits; nothing is asked."""
        now = self._clock()
        found: dict[str, int] = {}
        with self._lock:
            login = self._logins.get(name)
            if login is not None:
                for topic in topics:
                    bits, until = login.rights.get(topic, (0, 0.0))
                    if until > now:
                        found[topic] = bits
        return found

    def rights(self, name: str, password: str, topics: Iterable[str]) -> dict[str, int]:
        """What a user may do with topics, as bits; raises LoginRefused where the cluster cannot be asked."""
        wanted = tuple(topics)
        found = self.known_rights(name, wanted)
        missing = [topic for topic in wanted if topic not in found]
        for start in range(0, len(missing), TOPICS_ASKED_MAX):
            found |= self._ask(name, password, missing[start : start + TOPICS_ASKED_MAX])
        return found

    def _ask(self, name: str, password: str, topics: list[str]) -> dict[str, int]:
        fields = {
            "topics": [{"name": topic, "topic_id": None} for topic in topics],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": False,
        }
        try:
            link = self._link(name, password)
            try:
                answer = link.request(METADATA, fields, lowest=8, highest=12)
            finally:
                link.close()
        except AuthenticationFailed as fault:
            raise LoginRefused(Why.WRONG, "the name or the password is wrong") from fault
        except ClientFault as fault:
            raise LoginRefused(Why.UNREACHABLE, f"the cluster cannot be asked for rights: {fault}") from fault
        told = {row.name: int(row.topic_authorized_operations) for row in answer.topics}
        # A topic that the user may not see, or that cannot exist, has the negative number for "not told".
        found = {topic: max(0, told.get(topic, 0)) for topic in topics}
        until = self._clock() + RIGHTS_SECONDS
        with self._lock:
            login = self._logins.get(name)
            if login is not None:
                for topic, bits in found.items():
                    login.rights[topic] = (bits, until)
                    login.rights.move_to_end(topic)
                while len(login.rights) > TOPICS_KEPT_MAX:
                    login.rights.popitem(last=False)
        return found

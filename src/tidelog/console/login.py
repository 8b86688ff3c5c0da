"""Who may use a console: people who log in, their sessions, and how names and passwords are checked.

Everybody who is logged in works with the rights of the console's own user, so a login is never given to
just any user of the cluster: to the console's own one, and to those that whoever starts it has named, with
the role `change` or `read`. Passwords are checked by the cluster (`ClusterCheck`, a SASL exchange that is
thrown away) or against a file of the console's own (`FileCheck`). They are not kept, and no message has them.

Sessions live in memory, under the hash of a random id that only the browser knows. They end when nobody used
them for IDLE_SECONDS, and after LIFE_SECONDS in any case. Wrong passwords slow down: after TRIES_MAX of them
for a name from an address within TRIES_SECONDS (or ADDRESS_TRIES_MAX from it for any names), the next from
there are refused unseen.

A stranger who tries a name must not keep its owner out. So names are counted together with where somebody
comes from, and a browser in which somebody has logged in before shows that (`Devices`) and is counted by
itself: behind a proxy everybody has the same address, for what a header says of others is not believed.
"""

import base64
import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, BadOption, LinkFault
from tidelog.client.link import Link
from tidelog.console.faults import UNAVAILABLE, ConsoleFault

IDLE_SECONDS = 8 * 3_600.0
LIFE_SECONDS = 24 * 3_600.0
SESSIONS_MAX = 1_000
TRIES_MAX = 8
TRIES_SECONDS = 60.0
ADDRESS_TRIES_MAX = 60
#: the network of one customer: an IPv6 address alone is nobody's limit
IPV6_NETWORK_BITS = 64
TRIED_NAMES_MAX = 10_000
PASSWORD_CHARACTERS_MAX = 1_024
CHECK_TIMEOUT_MS = 5_000
TOO_MANY_REQUESTS = 429
ROLES = ("change", "read")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**14, 8, 1
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is logged in."""

    name: str
    role: str

    @property
    def may_change(self) -> bool:
        return self.role == "change"


@dataclass(slots=True)
class Session:
    """A login of one browser."""

    person: Person
    began: float
    used: float
    form_token: str


class Sessions:
    """The open sessions; safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, person: Person) -> str:
        """Begin a session; the id that the browser is to send."""
        session_id = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._open[_digest(session_id)] = Session(person, now, now, secrets.token_urlsafe(24))
            while len(self._open) > SESSIONS_MAX:
                self._open.popitem(last=False)
        return session_id

    def find(self, session_id: str) -> Session | None:
        """The session of an id, and note that it was used; None where it is unknown or over."""
        now = self._clock()
        key = _digest(session_id)
        with self._lock:
            session = self._open.get(key)
            if session is None:
                return None
            if now - session.used > IDLE_SECONDS or now - session.began > LIFE_SECONDS:
                del self._open[key]
                return None
            session.used = now
            return session

    def holds(self, session: Session) -> bool:
        """Whether a session that was found is still open."""
        with self._lock:
            return any(session is one for one in self._open.values())

    def close(self, session_id: str) -> None:
        with self._lock:
            self._open.pop(_digest(session_id), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


class Tries:
    """Counts wrong passwords, so that guessing is slow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[bytes, deque[float]] = OrderedDict()

    def check(self, limits: Mapping[str, int]) -> None:
        """ConsoleFault where one of the keys has failed too often lately."""
        oldest = self._clock() - TRIES_SECONDS
        with self._lock:
            for key, tries_max in limits.items():
                times = self._wrong.get(_digest(key), deque())
                while times and times[0] < oldest:
                    times.popleft()
                if len(times) >= tries_max:
                    raise ConsoleFault(
                        "too many wrong passwords", "Wait a minute, then try again.", TOO_MANY_REQUESTS
                    )

    def wrong(self, limits: Mapping[str, int]) -> None:
        with self._lock:
            for key, tries_max in limits.items():
                digest = _digest(key)  # of one size, whatever somebody calls themselves
                self._wrong.setdefault(digest, deque(maxlen=tries_max)).append(self._clock())
                self._wrong.move_to_end(digest)
            while len(self._wrong) > TRIED_NAMES_MAX:
                self._wrong.popitem(last=False)


class Devices:
    """Marks of browsers in which somebody has logged in; they prove that, and let nobody in."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def mark(self, name: str) -> str:
        """What the browser of somebody who has logged in is to keep."""
        number = secrets.token_urlsafe(16)
        return f"{number}.{self._proof(name, number)}"

    def knows(self, name: str, mark: str) -> bool:
        """Whether somebody of this name has logged in where this mark is kept."""
        number, _, proof = mark.partition(".")
        return hmac.compare_digest(self._proof(name, number).encode(), proof.encode())

    def _proof(self, name: str, number: str) -> str:
        return hmac.new(self._secret, f"{number}.{name}".encode(), hashlib.sha256).hexdigest()


class Check(Protocol):
    """Decides about a name and a password."""

    def person(self, name: str, password: str) -> Person | None:
        """Who this is; None where the name or the password is wrong."""


class ClusterCheck:
    """Asks the cluster, as a client that logs in with this name and password would."""

    def __init__(self, options: Mapping[str, str], roles: Mapping[str, str]) -> None:
        self._settings = replace(
            ClientSettings.from_options(options),
            client_id="tidelog-console-login",
            request_timeout_ms=CHECK_TIMEOUT_MS,
            connection_timeout_ms=CHECK_TIMEOUT_MS,
        )
        self._roles = dict(roles)

    def person(self, name: str, password: str) -> Person | None:
        role = self._roles.get(name)
        if role is None or not password:
            return None
        settings = replace(self._settings, sasl_username=name, sasl_password=password)
        for host, port in settings.bootstrap_servers:
            try:
                Link.open(host, port, settings).close()
            except AuthenticationFailed:
                return None
            except LinkFault:
                continue
            return Person(name, role)
        raise ConsoleFault(
            "the cluster does not answer, so nobody can log in now", "Try again in a moment.", UNAVAILABLE
        )


class FileCheck:
    """A file of the console's own: a line `name:role:scrypt$SALT$HASH` for each person."""

    def __init__(self, path: Path) -> None:
        self._people: dict[str, tuple[str, bytes, bytes]] = {}
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.strip() and not line.startswith("#"):
                name, entry = _read_line(line, f"{path}, line {number}")
                self._people[name] = entry

    def person(self, name: str, password: str) -> Person | None:
        # An unknown name costs the same time, so that nobody learns which names exist.
        role, salt, expected = self._people.get(name, ("", b"-" * _SALT_BYTES, b""))
        if not hmac.compare_digest(_scrypt(password, salt), expected):
            return None
        return Person(name, role)


def users_file_line(name: str, password: str, role: str) -> str:
    """The line of a person for the file that FileCheck reads."""
    if not name or ":" in name or role not in ROLES:
        raise ValueError(f"a name without a colon and one of the roles {', '.join(ROLES)} are needed")
    salt = secrets.token_bytes(_SALT_BYTES)
    parts = ("scrypt", *(base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt))))
    return f"{name}:{role}:{'$'.join(parts)}"


def _read_line(line: str, where: str) -> tuple[str, tuple[str, bytes, bytes]]:
    try:
        name, role, kept = line.strip().split(":")
        kind, salt, hashed = kept.split("$")
        if kind != "scrypt" or role not in ROLES:
            raise ValueError(kind)
        return name, (role, base64.b64decode(salt, validate=True), base64.b64decode(hashed, validate=True))
    except ValueError as fault:
        # What is wrong is not repeated: it may be a password that somebody wrote there.
        raise BadOption(
            f"{where} is not NAME:ROLE:scrypt$SALT$HASH; 'tidelog console --new-user NAME' makes one"
        ) from fault


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P)


class Login:
    """The door: checks, counts, and opens sessions."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self.sessions = Sessions()
        self.tries = Tries()
        self.devices = Devices()

    def person(self, name: str, password: str, address: str, mark: str = "") -> Person:
        """Who this is; ConsoleFault where that is not proven."""
        limits = self._limits(name, address, mark)
        self.tries.check(limits)
        if len(password) > PASSWORD_CHARACTERS_MAX:
            raise ConsoleFault(f"a password has at most {PASSWORD_CHARACTERS_MAX} characters")
        found = self._check.person(name, password)
        if found is None:
            self.tries.wrong(limits)
            raise ConsoleFault(
                "the name or the password is wrong",
                "Only those whom this console was told of may log in.",
                401,
            )
        return found

    def _limits(self, name: str, address: str, mark: str) -> dict[str, int]:
        """What wrong passwords are counted by, and how many each may have."""
        if mark and self.devices.knows(name, mark):
            return {f"device {mark}": TRIES_MAX}
        network = network_of(address)
        return {f"name {name} from {network}": TRIES_MAX, f"address {network}": ADDRESS_TRIES_MAX}


def network_of(address: str) -> str:
    """What is counted as one: an IPv4 address, or the network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))

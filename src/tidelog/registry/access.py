"""Who may do what: people log in with their name and password of the cluster, and have its ACLs here.

The registry keeps no users (`client.cluster_logins`). A subject has the rights of its topic: `orders-value`
and `orders-key` those of `orders`, another subject those of the topic of its own name; what a user may do
with the registry's topic itself counts for every subject.

    what                                        needs, of the topic or of `_schemas`
    read a subject's schemas, settings, mode    Read or Write, Describe is not enough
    look a schema up, check compatibility       Read or Write
    register                                    Write
    delete, softly or for good                  Delete
    change settings and modes                   AlterConfigs
"""

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster_logins import ClusterLogins, LoginRefused, Operation, Why
from tidelog.registry import subjects
from tidelog.registry.faults import (
    FORBIDDEN,
    STORE_FAULT,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    RegistryFault,
)

READING = frozenset({Operation.READ, Operation.WRITE})
WRITING = frozenset({Operation.WRITE})
DELETING = frozenset({Operation.DELETE})
CONFIGURING = frozenset({Operation.ALTER_CONFIGS})
_CODES = {Why.WRONG: UNAUTHORIZED, Why.HASTY: TOO_MANY_REQUESTS, Why.UNREACHABLE: STORE_FAULT}


class Caller(NamedTuple):
    """Somebody who sent a request; empty where the cluster asks for no password."""

    name: str = ""
    password: str = ""


class OpenAccess:
    """A cluster without logins: everybody may do everything."""

    #: whether requests need a name and a password
    closed = False

    def check(self, name: str, password: str, address: str) -> Caller:
        return Caller()

    def require(self, caller: Caller, subject: str, any_of: frozenset[Operation]) -> None:
        """Nothing is forbidden."""

    def allowed(self, caller: Caller, names: Iterable[str], any_of: frozenset[Operation]) -> set[str]:
        return set(names)


class ClusterAccess:
    """The cluster's users and ACLs."""

    closed = True

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        self._topic = topic
        self._cluster = ClusterLogins(settings, "tidelog-registry-login")

    def __repr__(self) -> str:
        return f"<ClusterAccess {self._cluster!r}>"

    def check(self, name: str, password: str, address: str) -> Caller:
        """Who sent this; raises RegistryFault where the cluster does not know them."""
        try:
            self._cluster.check(name, password, address)
        except LoginRefused as fault:
            raise RegistryFault(_CODES[fault.why], str(fault)) from fault
        return Caller(name, password)

    def require(self, caller: Caller, subject: str, any_of: frozenset[Operation]) -> None:
        """Raise RegistryFault unless the caller may do one of these with a subject ("": with all of them)."""
        if not self.allowed(caller, (subject,), any_of):
            wanted = " or ".join(sorted(operation.name.title() for operation in any_of))
            topic = subjects.topic_of(subject) if subject else self._topic
            raise RegistryFault(
                FORBIDDEN, f"user {caller.name} may not do this: it needs {wanted} on topic {topic}"
            )

    def allowed(self, caller: Caller, names: Iterable[str], any_of: frozenset[Operation]) -> set[str]:
        """Those of these subjects with which the caller may do one of the operations."""
        wanted = tuple(names)
        mask = sum(1 << operation for operation in any_of)
        if self._rights(caller, (self._topic,))[self._topic] & mask:
            return set(wanted)
        topics = {name: subjects.topic_of(name) for name in wanted if name}
        rights = self._rights(caller, tuple(dict.fromkeys(topics.values())))
        return {name for name, topic in topics.items() if rights.get(topic, 0) & mask}

    def _rights(self, caller: Caller, topics: tuple[str, ...]) -> dict[str, int]:
        try:
            return self._cluster.rights(caller.name, caller.password, topics)
        except LoginRefused as fault:
            raise RegistryFault(_CODES[fault.why], str(fault)) from fault


Access = OpenAccess | ClusterAccess

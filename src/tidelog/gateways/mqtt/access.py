"""Who may do what: clients log in with their name and password of the cluster, and have its ACLs.

    what            needs, of the Kafka topic that the map names
    publish, will   Write
    subscribe       Read

The gateway works with the cluster under its own login; the cluster is asked what the client's user may do
(`client.cluster_logins`). An answer counts for half a minute; asking happens in threads.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster_logins import ClusterLogins, LoginRefused, Operation, Why
from tidelog.gateways.mqtt.faults import PacketFault, Reason

READ = 1 << Operation.READ
WRITE = 1 << Operation.WRITE
LOGINS_MAX = 50_000
_REASONS = {
    Why.WRONG: Reason.BAD_USER_NAME_OR_PASSWORD,
    Why.HASTY: Reason.SERVER_BUSY,
    Why.UNREACHABLE: Reason.SERVER_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end; empty where the cluster asks for no password."""

    name: str = ""
    password: str = field(default="", repr=False)


class OpenAccess:
    """A cluster without logins: everybody may do everything."""

    async def login(self, name: str | None, password: bytes | None, address: str) -> Caller:
        return Caller()

    def allowed_now(self, caller: Caller, topic: str, right: int) -> bool | None:
        return True

    async def allowed(self, caller: Caller, topics: Iterable[str], right: int) -> set[str]:
        return set(topics)


class ClusterAccess:
    """The cluster's users and ACLs."""

    def __init__(self, settings: ClientSettings, executor: ThreadPoolExecutor) -> None:
        self._cluster = ClusterLogins(settings, "tidelog-mqtt-login", logins_max=LOGINS_MAX)
        self._executor = executor

    async def login(self, name: str | None, password: bytes | None, address: str) -> Caller:
        """Who this is; raises PacketFault where the cluster does not know them."""
        try:
            text = (password or b"").decode()
        except UnicodeDecodeError:
            raise PacketFault(Reason.BAD_USER_NAME_OR_PASSWORD, "the password is not UTF-8") from None
        caller = Caller(name or "", text)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._executor, self._cluster.check, caller.name, caller.password, address
            )
        except LoginRefused as fault:
            raise PacketFault(_REASONS[fault.why], str(fault)) from fault
        return caller

    def allowed_now(self, caller: Caller, topic: str, right: int) -> bool | None:
        """Whether something is allowed as far as is known; None if it has to be asked for."""
        found = self._cluster.known_rights(caller.name, (topic,))
        return bool(found[topic] & right) if topic in found else None

    async def allowed(self, caller: Caller, topics: Iterable[str], right: int) -> set[str]:
        """Those of the topics with which it is allowed; raises PacketFault."""
        loop = asyncio.get_running_loop()
        ask = partial(self._cluster.rights, caller.name, caller.password, tuple(topics))
        try:
            found = await loop.run_in_executor(self._executor, ask)
        except LoginRefused as fault:
            raise PacketFault(_REASONS[fault.why], str(fault)) from fault
        return {topic for topic, bits in found.items() if bits & right}


Access = OpenAccess | ClusterAccess

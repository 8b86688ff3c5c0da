"""Who may write: the instances form a group on the cluster, and the group's leader names one of them.

The protocol is Confluent's (`sr`, version `v0`): a member's metadata is its address as JSON, the assignment
names the primary. The member that is the primary already stays it; else the one with the smallest address.
A member that cannot reach the group for a session is nobody's primary in its own eyes. What keeps two of
them from writing is not this, which takes time to notice, but the fence of `writer`.

`Membership` runs in a thread of its own and calls `on_change` with the primary's address and whether that
is us.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tidelog.client.api_keys import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import ClientFault, LinkFault, Refusal
from tidelog.model.errors import ErrorCode

_log = logging.getLogger("tidelog.registry")

PROTOCOL_TYPE = "sr"
PROTOCOL = "v0"
SESSION_MS = 6_000
HEARTBEAT_SECONDS = 1.5
REBALANCE_MS = 20_000
AGAIN_SECONDS = 0.5
_MARGIN_MS = 5_000


class Identity(NamedTuple):
    """An instance as the others see it."""

    scheme: str
    host: str
    port: int
    eligible: bool = True

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "host": self.host,
            "port": self.port,
            "master_eligibility": self.eligible,
            "scheme": self.scheme,
        }


class Primary(NamedTuple):
    """Who writes: an address, or None while nobody is known; and whether it is this instance."""

    url: str | None
    is_us: bool


class _Generation(NamedTuple):
    number: int
    member_id: str


class Membership:
    """This instance in the group."""

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        identity: Identity,
        on_change: Callable[[Primary], None],
    ) -> None:
        self._cluster = Cluster(replace(settings, client_id="tidelog-registry-election"))
        self._group_id = group_id
        self._identity = identity
        self._on_change = on_change
        self._stopped = threading.Event()
        self._primary = Primary(None, False)
        self._member_id = ""
        self._heard_at = time.monotonic()
        #: trouble that goes on is told once
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="registry-election", daemon=True)

    def __repr__(self) -> str:
        return f"<Membership {self._group_id} member={self._member_id!r} primary={self._primary.url}>"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that another instance takes over at once."""
        self._stopped.set()
        self._thread.join(REBALANCE_MS / 1000)

    # The thread

    def _run(self) -> None:
        with self._cluster:
            while not self._stopped.is_set():
                try:
                    self._stay(self._join())
                except Refusal as fault:
                    self._note(fault)
                    if fault.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                        self._member_id = ""
                    self._pause(fault)
                except ClientFault as fault:
                    self._note(fault)
                    self._pause(fault)
            self._leave()

    def _note(self, fault: ClientFault) -> None:
        rebalance = isinstance(fault, Refusal) and fault.code == ErrorCode.REBALANCE_IN_PROGRESS
        if not rebalance and str(fault) != self._told:
            self._told = str(fault)
            _log.warning("the registry's group: %s", fault)
        self._cluster.forget_places()

    def _pause(self, fault: ClientFault) -> None:
        if (time.monotonic() - self._heard_at) * 1000 > SESSION_MS:
            # The others may have named somebody else by now.
            self._settle(Primary(None, False))
        if not (isinstance(fault, Refusal) and fault.code == ErrorCode.REBALANCE_IN_PROGRESS):
            self._stopped.wait(AGAIN_SECONDS)

    def _join(self) -> _Generation:
        """Join and take the assignment in; raises ClientFault."""
        link = self._cluster.coordinator_link(CoordinatorKind.GROUP, self._group_id)
        metadata = json.dumps({**self._identity.as_json(), "leader": self._primary.is_us}).encode()
        fields = {
            "group_id": self._group_id,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self._member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": PROTOCOL, "metadata": metadata}],
        }
        answer = link.request(JOIN_GROUP, fields, lowest=2, highest=5, timeout_ms=REBALANCE_MS + _MARGIN_MS)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            fields["member_id"] = answer.member_id
            answer = link.request(
                JOIN_GROUP, fields, lowest=2, highest=5, timeout_ms=REBALANCE_MS + _MARGIN_MS
            )
        if answer.error_code:
            raise Refusal(answer.error_code, f"joining group {self._group_id!r}")
        self._member_id = answer.member_id
        assignments: list[dict[str, Any]] = []
        if answer.leader == answer.member_id:
            members = {row.member_id: bytes(row.metadata) for row in answer.members}
            assignment = assign(members)
            assignments = [{"member_id": name, "assignment": assignment} for name in members]
        fields = {
            "group_id": self._group_id,
            "generation_id": answer.generation_id,
            "member_id": answer.member_id,
            "assignments": assignments,
        }
        synced = link.request(SYNC_GROUP, fields, lowest=1, highest=3, timeout_ms=REBALANCE_MS + _MARGIN_MS)
        if synced.error_code:
            raise Refusal(synced.error_code, f"synchronizing group {self._group_id!r}")
        self._heard_at = time.monotonic()
        self._told = ""
        self._settle(read_assignment(bytes(synced.assignment), answer.member_id))
        return _Generation(answer.generation_id, answer.member_id)

    def _stay(self, generation: _Generation) -> None:
        """Beat until the group begins anew or cannot be reached; raises ClientFault."""
        fields = {
            "group_id": self._group_id,
            "generation_id": generation.number,
            "member_id": generation.member_id,
        }
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            link = self._cluster.coordinator_link(CoordinatorKind.GROUP, self._group_id)
            answer = link.request(HEARTBEAT, fields, lowest=1, highest=3)
            if answer.error_code:
                raise Refusal(answer.error_code, f"staying in group {self._group_id!r}")
            self._heard_at = time.monotonic()

    def _leave(self) -> None:
        self._settle(Primary(None, False))
        if not self._member_id:
            return
        with contextlib.suppress(LinkFault, Refusal):
            link = self._cluster.coordinator_link(CoordinatorKind.GROUP, self._group_id)
            fields = {"group_id": self._group_id, "member_id": self._member_id}
            link.request(LEAVE_GROUP, fields, lowest=1, highest=2)

    def _settle(self, primary: Primary) -> None:
        if primary != self._primary:
            self._primary = primary
            self._on_change(primary)


def assign(members: dict[str, bytes]) -> bytes:
    """What the group's leader tells every member: who the primary is."""
    candidates: list[tuple[bool, str, str, dict[str, Any]]] = []
    for member_id, metadata in members.items():
        try:
            identity = json.loads(metadata)
            url = identity_of(identity).url
        except (ValueError, KeyError, TypeError):
            continue
        if identity.get("master_eligibility", True):
            candidates.append((not identity.get("leader", False), url, member_id, identity))
    if not candidates:
        return json.dumps({"version": 1, "error": 0, "master": None, "master_identity": None}).encode()
    _, _, member_id, identity = min(candidates, key=lambda row: row[:3])
    told = {name: value for name, value in identity.items() if name != "leader"}
    return json.dumps({"version": 1, "error": 0, "master": member_id, "master_identity": told}).encode()


def read_assignment(assignment: bytes, member_id: str) -> Primary:
    """Who the primary is, by an assignment; nobody where it cannot be read."""
    try:
        found = json.loads(assignment)
        if found.get("error") or found.get("master_identity") is None:
            return Primary(None, False)
        return Primary(identity_of(found["master_identity"]).url, found.get("master") == member_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Primary(None, False)


def identity_of(found: dict[str, Any]) -> Identity:
    return Identity(
        str(found.get("scheme") or "http"),
        str(found["host"]),
        int(found["port"]),
        bool(found.get("master_eligibility", True)),
    )

"""The authorizer of a broker: who may do what, from the newest ACLs (`authorizer.class.name`).

There is none unless the settings ask for it, and then nothing here costs anything: whoever checks looks at
`authorization`, which is None. With one, what is allowed is remembered until an ACL changes, so that
the checks of Produce and Fetch are one look-up each. What is denied is not: who may nothing would fill the
memory with the names that they make up.

Brokers need CLUSTER_ACTION of each other. The principal they authenticate as (SASL of the inter-broker
listener) is a super user by itself; where brokers are anonymous, or known by their certificates, it has to
be in `super.users`, as in Kafka. A broker that no ACL and no setting lets in says so in the log.

Denials are logged by the logger `tidelog.authorizer`, each once as long as it is among the last thousands, no
more than a hundred in a second, and with the beginning of the name: who may nothing must not fill the disk
either.
"""

import logging
from dataclasses import dataclass, field
from sys import getsizeof

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.model.acls import (
    ANONYMOUS,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourceType,
)
from tidelog.model.image import ClusterImage
from tidelog.model.ports import Clock
from tidelog.model.settings import BrokerSettings
from tidelog.security.acl import AclIndex, parse_super_users

audit_log = logging.getLogger("tidelog.authorizer")
log = logging.getLogger(__name__)

#: permissions remembered, and the bytes of their names; when there are more, all are forgotten
ALLOWED_MAX = 65_536
ALLOWED_NAMES_BYTES_MAX = 8 << 20
#: denials that were logged are known by their hashes
DENIALS_KNOWN_MAX = 4_096
DENIALS_LOGGED_PER_SECOND_MAX = 100
#: as much of a name as is logged
NAME_SHOWN_MAX = 128


def inter_broker_principal(settings: BrokerSettings) -> str | None:
    """Who this broker is to the others, as far as the settings tell; None where a certificate does."""
    listener = settings.inter_broker_listener_name
    protocol = settings.security_protocols.get(listener, "PLAINTEXT")
    if not protocol.startswith("SASL_"):
        return ANONYMOUS if protocol == "PLAINTEXT" else None
    from tidelog.security.jaas import parse_options

    mechanism = str(settings.get("sasl.mechanism.inter.broker.protocol"))
    line = settings.for_listener(listener, "sasl.jaas.config", mechanism)
    name = parse_options(str(line or "")).get("username")
    return None if name is None else f"User:{name}"


@dataclass(frozen=True, slots=True)
class DescribedTopics:
    """The topics that somebody may know of by the newest ACLs; equal for the same principal and host."""

    principal: str
    host: str
    _authorization: "Authorization" = field(compare=False, repr=False)

    def __call__(self, name: str) -> bool:
        return self._authorization.describes_topic(self.principal, self.host, name)


def _shown(name: str) -> str:
    """A name for the log, its beginning if it is long."""
    if len(name) <= NAME_SHOWN_MAX:
        return repr(name)
    return f"{name[:NAME_SHOWN_MAX]!r}… ({len(name)} characters)"


class Authorization:
    """Decides what the peers of one broker may do."""

    __slots__ = (
        "_allow_if_no_acl",
        "_allowed",
        "_allowed_names_bytes",
        "_clock",
        "_denials",
        "_denials_logged",
        "_denials_second",
        "_index",
        "_super_users",
    )

    def __init__(self, image: ClusterImage, settings: BrokerSettings, clock: Clock) -> None:
        self._clock = clock
        super_users = settings.get("super.users")
        self._super_users = parse_super_users(None if super_users is None else str(super_users))
        self._allow_if_no_acl = settings.get_bool("allow.everyone.if.no.acl.found")
        own = inter_broker_principal(settings)
        if own is not None and own != ANONYMOUS:
            self._super_users |= {own}
        self._denials_second = self._denials_logged = 0
        self._allowed: set[tuple[str, str, AclOperation, ResourceType, str]] = set()
        self._allowed_names_bytes = 0
        self._denials: set[int] = set()
        self.adopt(image)
        if own == ANONYMOUS and not self._index.allows(
            own, "", AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            log.warning(
                "brokers reach each other as %s, who may not do CLUSTER_ACTION: a cluster needs SASL or TLS "
                "on its inter-broker listener, an ACL, or %s in super.users",
                own,
                own,
            )

    def adopt(self, image: ClusterImage) -> None:
        """Decide from these ACLs from now on."""
        self._index = AclIndex(image.acls, self._super_users, self._allow_if_no_acl)
        self._allowed = set()
        self._allowed_names_bytes = 0
        self._denials.clear()

    def allows(
        self, context: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        """Whether the peer of a connection may do this to a resource."""
        key = (context.principal, context.host, operation, kind, name)
        return key in self._allowed or self._decide(key)

    def _decide(self, key: tuple[str, str, AclOperation, ResourceType, str]) -> bool:
        principal, host, operation, kind, name = key
        allowed = self._index.allows(*key)
        if allowed:
            name_bytes = getsizeof(name)
            if (
                len(self._allowed) >= ALLOWED_MAX
                or self._allowed_names_bytes + name_bytes > ALLOWED_NAMES_BYTES_MAX
            ):
                self._allowed = set()
                self._allowed_names_bytes = 0
            self._allowed.add(key)
            self._allowed_names_bytes += name_bytes
        elif not self._may_log_denial(hash(key)):
            return False
        audit_log.log(
            logging.DEBUG if allowed else logging.INFO,
            "%s is %s %s on %s %s from %s",
            principal,
            "allowed" if allowed else "denied",
            operation.name,
            kind.name,
            _shown(name),
            host,
        )
        return allowed

    def _may_log_denial(self, denial: int) -> bool:
        if denial in self._denials:
            return False
        second = self._clock.monotonic_ms() // 1000
        if second != self._denials_second:
            self._denials_second, self._denials_logged = second, 0
        if self._denials_logged >= DENIALS_LOGGED_PER_SECOND_MAX:
            return False
        self._denials_logged += 1
        if len(self._denials) >= DENIALS_KNOWN_MAX:
            self._denials.clear()
        self._denials.add(denial)
        return True

    def allows_cluster_action(self, context: ConnectionContext) -> bool:
        """Whether the peer of a connection is a broker of the cluster, or may act as one."""
        return self.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any(self, context: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether the peer may do this to at least one resource of a type."""
        return self._index.allows_any(context.principal, context.host, operation, kind)

    def described_topics(self, context: ConnectionContext) -> "DescribedTopics":
        """Which topics the peer may know of, now and later."""
        return DescribedTopics(context.principal, context.host, self)

    def describes_topic(self, principal: str, host: str, name: str) -> bool:
        """Whether somebody may know of a topic; nobody asked for it by name, so denials are not logged."""
        return self._index.allows(principal, host, AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def operations(self, context: ConnectionContext, kind: ResourceType, name: str) -> int:
        """What the peer may do to a resource, one bit for each operation."""
        principal, host = context.principal, context.host
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[kind]
            if self._index.allows(principal, host, operation, kind, name)
        )

    def __repr__(self) -> str:
        return f"<Authorization super_users={len(self._super_users)} allowed={len(self._allowed)}>"

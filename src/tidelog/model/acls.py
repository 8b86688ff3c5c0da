"""Access control lists as values: who may, or may not, do what to which resource.

An ACL is an entry (principal, host, operation, allow or deny) on a resource pattern (type, name, literal or
prefixed). The numbers of the enumerations are the protocol's. `AclFilter` is how DescribeAcls and DeleteAcls
choose: None and ANY fit everything, MATCH fits every pattern that applies to a name.

    acls/<type>/<literal or prefixed>/<name, as in a URL>    {"entries": [[principal, host, …], …]}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

ACLS_PREFIX = "acls/"

#: a name, a host, or the name of a principal that stands for all of them
WILDCARD = "*"
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
ANONYMOUS = "User:ANONYMOUS"


class ResourceType(IntEnum):
    """What can be protected."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a pattern is meant."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What can be done."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Whether an entry allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: the operations that a type of resource knows, which "authorized operations" of an answer are drawn from
SUPPORTED_OPERATIONS: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


class ResourcePattern(NamedTuple):
    """The resources that ACLs are for."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def applies_to(self, name: str) -> bool:
        """Whether a resource of this name, of the same type, is meant."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclEntry(NamedTuple):
    """Who may, or may not, do what, from where."""

    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    @property
    def pattern(self) -> ResourcePattern:
        return ResourcePattern(self.resource_type, self.name, self.pattern_type)

    @property
    def entry(self) -> AclEntry:
        return AclEntry(self.principal, self.host, self.operation, self.permission)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    @property
    def unknown(self) -> bool:
        """Whether it says something that this version does not know."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.name is None:
            return self.pattern_type in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type)
        if self.pattern_type is PatternType.MATCH:
            return pattern.applies_to(self.name)
        return self.pattern_type in (PatternType.ANY, pattern.pattern_type) and self.name == pattern.name

    def matches_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (PermissionType.ANY, entry.permission)
        )


def acl_binding(pattern: ResourcePattern, entry: AclEntry) -> AclBinding:
    """The ACL made of a pattern and an entry."""
    kind, name, way = pattern
    principal, host, operation, permission = entry
    return AclBinding(kind, name, way, principal, host, operation, permission)


@dataclass(frozen=True, slots=True)
class AclsRecord:
    """Everything that is now allowed and denied for a resource pattern; no entries mean there are no ACLs."""

    pattern: ResourcePattern
    entries: frozenset[AclEntry] = frozenset()

    def writes(self) -> tuple[tuple[str, bytes | None], ...]:
        kind, name, way = self.pattern
        key = f"{ACLS_PREFIX}{kind.name.lower()}/{way.name.lower()}/{quote(name, safe='')}"
        rows = [
            [principal, host, operation.name, permission.name]
            for principal, host, operation, permission in sorted(self.entries)
        ]
        value = json.dumps({"entries": rows}, separators=(",", ":")).encode()
        return ((key, value if rows else None),)

    @classmethod
    def from_entry(cls, kind: str, way: str, name: str, fields: Mapping[str, Any]) -> "AclsRecord":
        """Read back what `writes` wrote; what went away reads as no entries."""
        pattern = ResourcePattern(ResourceType[kind.upper()], unquote(name), PatternType[way.upper()])
        return cls(
            pattern,
            frozenset(
                AclEntry(str(principal), str(host), AclOperation[operation], PermissionType[permission])
                for principal, host, operation, permission in fields.get("entries", ())
            ),
        )

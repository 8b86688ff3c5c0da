"""Decides from ACLs, as Kafka's StandardAuthorizer does.

For a principal, a host, an operation and a named resource:

1. A super user may do everything.
2. Every ACL counts whose pattern applies to the name (literal, prefixed, or the literal `*`), whose principal
   is the caller or `User:*`, whose host is the caller's address or `*`.
3. One that denies the operation, or ALL, wins.
4. One that allows it, or ALL, or an operation that implies it: READ, WRITE, DELETE and ALTER imply DESCRIBE,
   ALTER_CONFIGS implies DESCRIBE_CONFIGS. To deny READ does not deny DESCRIBE.
5. Where no ACL at all is on the resource, the default decides; where there are some, the answer is no.

Finding the patterns of a name costs one look-up for each length that prefixes have, not one for each ACL.
"""

from collections.abc import Iterator, Mapping

from tidelog.model.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

_IMPLIED_BY: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
#: what makes somebody know of a resource
IMPLY_DESCRIBE = (AclOperation.DESCRIBE, *_IMPLIED_BY[AclOperation.DESCRIBE])
_NO_OPERATIONS: frozenset[AclOperation] = frozenset()
#: no resource has this name in earnest; asking for it tells what holds without ACLs
_NO_RESOURCE = "\0"

Acls = Mapping[ResourcePattern, frozenset[AclEntry]]


class AclIndex:
    """ACLs, arranged to be asked."""

    __slots__ = ("_default", "_literals", "_prefix_lengths", "_prefixes", "super_users")

    def __init__(self, acls: Acls, super_users: frozenset[str], allow_if_no_acl: bool) -> None:
        self.super_users = super_users
        self._default = allow_if_no_acl
        self._literals: dict[tuple[ResourceType, str], frozenset[AclEntry]] = {}
        self._prefixes: dict[tuple[ResourceType, str], frozenset[AclEntry]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for (kind, name, way), entries in acls.items():
            if way is PatternType.PREFIXED:
                self._prefixes[kind, name] = entries
                lengths.setdefault(kind, set()).add(len(name))
            else:
                self._literals[kind, name] = entries
        self._prefix_lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def _applying(self, kind: ResourceType, name: str) -> Iterator[frozenset[AclEntry]]:
        """The ACLs of every pattern that applies to a name."""
        literals = self._literals
        for literal in {name, WILDCARD}:
            if (entries := literals.get((kind, literal))) is not None:
                yield entries
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            if (entries := self._prefixes.get((kind, name[:length]))) is not None:
                yield entries

    def allows(
        self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        """Whether the principal may do this to the resource."""
        if principal in self.super_users:
            return True
        implied_by = _IMPLIED_BY.get(operation, _NO_OPERATIONS)
        found = allowed = False
        for entries in self._applying(kind, name):
            found = True
            for who, where, what, permission in entries:
                if who not in (principal, WILDCARD_PRINCIPAL) or where not in (host, WILDCARD):
                    continue
                if what is operation or what is AclOperation.ALL:
                    if permission is PermissionType.DENY:
                        return False
                    allowed = True
                elif permission is PermissionType.ALLOW and what in implied_by:
                    allowed = True
        return allowed or (not found and self._default)

    def allows_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether the principal may do this to at least one resource of the type (KIP-679).

        Implied operations do not count here, as in Kafka.
        """
        if self.allows(principal, host, operation, kind, _NO_RESOURCE):
            return True
        allowed: list[tuple[PatternType, str]] = []
        denied: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        for way, patterns in (
            (PatternType.LITERAL, self._literals),
            (PatternType.PREFIXED, self._prefixes),
        ):
            for (of_kind, name), entries in patterns.items():
                if of_kind is not kind:
                    continue
                for who, where, what, permission in entries:
                    if who not in (principal, WILDCARD_PRINCIPAL) or where not in (host, WILDCARD):
                        continue
                    if what is not operation and what is not AclOperation.ALL:
                        continue
                    if permission is PermissionType.DENY:
                        denied[way].add(name)
                    else:
                        allowed.append((way, name))
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        return any(not _covered(way, name, denied) for way, name in allowed)


def _covered(way: PatternType, name: str, denied: Mapping[PatternType, set[str]]) -> bool:
    """Whether everything that an allowing pattern stands for is denied."""
    if way is PatternType.LITERAL and name == WILDCARD:
        return False
    if way is PatternType.LITERAL and name in denied[PatternType.LITERAL]:
        return True
    return any(name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(name) + 1))


def parse_super_users(text: str | None) -> frozenset[str]:
    """The principals in `super.users`: `User:alice;User:CN=bob,O=acme`, since names may have commas."""
    return frozenset(part.strip() for part in (text or "").split(";") if part.strip())

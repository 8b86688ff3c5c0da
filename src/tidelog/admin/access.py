"""Who may do what: users with their passwords' mechanisms, ACLs and quotas. Any broker answers.

Passwords are salted and hashed here: brokers never see them.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.client.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from tidelog.client.cluster import Cluster
from tidelog.model.acls import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.scram import SALT_BYTES, salted_password

#: in the order of their numbers in the protocol, from 1
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_EXACT, _DEFAULT = 0, 1
#: a filter that leaves nothing out
EVERY_ACL: Mapping[str, Any] = {
    "resource_type_filter": int(ResourceType.ANY),
    "resource_name_filter": None,
    "pattern_type_filter": int(PatternType.ANY),
    "principal_filter": None,
    "host_filter": None,
    "operation": int(AclOperation.ANY),
    "permission_type": int(PermissionType.ANY),
}

#: of a user, a client id and an address, each by name or None for all that have no limit of their own
Entity = dict[str, str | None]


class Credential(NamedTuple):
    mechanism: str
    iterations: int

    def __str__(self) -> str:
        return f"{self.mechanism} ({self.iterations} iterations)"


@dataclass(frozen=True, slots=True)
class UserView:
    """A user, and the mechanisms that there is a password for."""

    name: str
    credentials: tuple[Credential, ...]


@dataclass(frozen=True, slots=True)
class QuotaView:
    """The limits of somebody."""

    of: Entity
    limits: tuple[tuple[str, float], ...]

    @property
    def entity(self) -> str:
        return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in self.of.items())


class AclView(NamedTuple):
    """An ACL: who may, or may not, do what to which resource."""

    principal: str
    permission: PermissionType
    operation: AclOperation
    resource: ResourceType
    name: str
    pattern: PatternType
    host: str


def users(admin: ClusterAdmin, names: Sequence[str] | None = None) -> list[UserView]:
    """Who has a password, by name: these, or all."""
    wanted = None if names is None else [{"name": name} for name in names]
    what = "the users cannot be read"
    answer = admin.request(what, DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": wanted}, highest=0)
    for row in answer.results:
        _check(admin, row, f"the user {str(row.user)!r} cannot be read")
    return sorted(
        (
            UserView(
                str(row.user),
                tuple(
                    Credential(_mechanism(info.mechanism), int(info.iterations))
                    for info in sorted(row.credential_infos, key=lambda info: info.mechanism)
                ),
            )
            for row in answer.results
        ),
        key=lambda user: user.name,
    )


def set_password(
    admin: ClusterAdmin, user: str, mechanisms: Sequence[str], password: str, iterations: int
) -> None:
    """Give a user, old or new, a password for these mechanisms."""
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertion = {
            "name": user,
            "mechanism": _number(mechanism),
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(mechanism, password, salt, iterations),
        }
        _alter_user(admin, user, {"deletions": [], "upsertions": [upsertion]})


def remove_password(admin: ClusterAdmin, user: str, mechanisms: Sequence[str]) -> None:
    """Take a user's password for these mechanisms away."""
    for mechanism in mechanisms:
        deletion = {"name": user, "mechanism": _number(mechanism)}
        _alter_user(admin, user, {"deletions": [deletion], "upsertions": []})


def _alter_user(admin: ClusterAdmin, user: str, fields: dict[str, Any]) -> None:
    """One request for each mechanism: a request may name a user once."""
    what = f"the user {user!r} was not changed"

    def ask(cluster: Cluster) -> None:
        for row in cluster.any_link().request(ALTER_USER_SCRAM_CREDENTIALS, fields, highest=0).results:
            check(row, what)

    admin.asked_once(what, ask)


def _number(mechanism: str) -> int:
    return MECHANISMS.index(mechanism) + 1


def _mechanism(number: int) -> str:
    return MECHANISMS[number - 1] if 1 <= number <= len(MECHANISMS) else f"mechanism {number}"


def quotas(admin: ClusterAdmin, of: Entity | None = None) -> list[QuotaView]:
    """The limits of users, client ids and addresses: of those that are named, or all."""
    components = [
        {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
        for kind, name in (of or {}).items()
    ]
    fields = {"components": components, "strict": False}
    answer = admin.request("the quotas cannot be read", DESCRIBE_CLIENT_QUOTAS, fields, highest=1)
    return [
        QuotaView(
            {str(part.entity_type): part.entity_name for part in entry.entity},
            tuple((str(value.key), float(value.value)) for value in entry.values),
        )
        for entry in answer.entries or ()
    ]


def set_quotas(admin: ClusterAdmin, entity: Entity, limits: Mapping[str, float | None]) -> None:
    """Set limits, or with None take them away."""
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    ops = [{"key": key, "value": limit or 0.0, "remove": limit is None} for key, limit in limits.items()]
    fields = {"entries": [{"entity": parts, "ops": ops}], "validate_only": False}
    what = "the quota was not changed"
    for entry in admin.request(what, ALTER_CLIENT_QUOTAS, fields, highest=1).entries:
        _check(admin, entry, what)


def create_acls(admin: ClusterAdmin, created: Sequence[AclView]) -> None:
    """Create ACLs."""
    creations = [
        {
            "resource_type": int(acl.resource),
            "resource_name": acl.name,
            "resource_pattern_type": int(acl.pattern),
            "principal": acl.principal,
            "host": acl.host,
            "operation": int(acl.operation),
            "permission_type": int(acl.permission),
        }
        for acl in created
    ]
    what = "the ACL was not created"
    for row in admin.request(what, CREATE_ACLS, {"creations": creations}, lowest=1, highest=3).results:
        _check(admin, row, what)


def acls(admin: ClusterAdmin, fitting: Mapping[str, Any] = EVERY_ACL) -> list[AclView]:
    """The ACLs that fit a filter."""
    answer = admin.request("the ACLs cannot be read", DESCRIBE_ACLS, dict(fitting), lowest=1, highest=3)
    return [
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, entry)
        for resource in answer.resources
        for entry in resource.acls
    ]


def delete_acls(admin: ClusterAdmin, filters: Iterable[Mapping[str, Any]]) -> list[AclView]:
    """Delete the ACLs that fit one of the filters; those that were."""
    what = "the ACLs were not deleted"
    answer = admin.request(what, DELETE_ACLS, {"filters": list(filters)}, lowest=1, highest=3)
    rows: list[AclView] = []
    for result in answer.filter_results:
        _check(admin, result, what)
        rows += [
            _acl(one.resource_type, one.resource_name, one.pattern_type, one) for one in result.matching_acls
        ]
    return rows


def _acl(kind: int, name: str, pattern: int, entry: Any) -> AclView:
    return AclView(
        str(entry.principal),
        PermissionType(int(entry.permission_type)),
        AclOperation(int(entry.operation)),
        ResourceType(int(kind)),
        str(name),
        PatternType(int(pattern)),
        str(entry.host),
    )


def _check(admin: ClusterAdmin, row: Any, what: str) -> None:
    with admin.explained(what):
        check(row, what)

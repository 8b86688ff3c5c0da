"""ACLs and client quotas: who may do what, and how much of it.

Validation, its order and its errors are Kafka's. An ACL that exists already is created again without a
change; a filter that chooses nothing deletes nothing.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from tidelog.controller.commands import (
    AclsDeleted,
    AlterClientQuotas,
    CreateAcls,
    Decision,
    DeleteAcls,
    Done,
    QuotaChange,
    Result,
)
from tidelog.model.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclOperation,
    AclsRecord,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    acl_binding,
)
from tidelog.model.client_quotas import (
    CLIENT_KEYS,
    ENTITY_TYPES,
    IP,
    IP_KEYS,
    WHOLE_NUMBER_MAX,
    QuotaEntity,
    QuotasRecord,
    quota_entity,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import MetadataRecord

#: Kafka's limit on what one request may change
CHANGES_MAX = 10_000
#: longer names of resources and principals are refused
NAME_LENGTH_MAX = 4_096
#: the store keeps the ACLs of a pattern together
ENTRIES_PER_PATTERN_MAX = 10_000
_FRACTION_MAX = 1e-6

Entries = dict[ResourcePattern, set[AclEntry]]


def create_acls(command: CreateAcls, image: ClusterImage) -> Decision:
    """Add each ACL that is well-formed."""
    if command.item_count > CHANGES_MAX:
        refused = Refused(ErrorCode.INVALID_REQUEST, f"at most {CHANGES_MAX} ACLs are created at once")
        return Decision((), (refused,) * command.item_count)
    changed: Entries = {}
    results: list[Result] = []
    for binding in command.acls:
        fault = _binding_fault(binding)
        if fault is None:
            entries = _entries(changed, image, binding.pattern)
            if len(entries) < ENTRIES_PER_PATTERN_MAX or binding.entry in entries:
                entries.add(binding.entry)
                results.append(Done())
                continue
            fault = f"a resource has at most {ENTRIES_PER_PATTERN_MAX} ACLs"
        results.append(Refused(ErrorCode.INVALID_REQUEST, fault))
    return Decision(tuple(_records(changed, image)), tuple(results))


def delete_acls(command: DeleteAcls, image: ClusterImage) -> Decision:
    """Remove what each filter chooses; an ACL that two of them choose is shown under both."""
    changed: Entries = {}
    results: list[Result] = []
    count = 0
    for one in command.filters:
        if one.unknown:
            results.append(Refused(ErrorCode.INVALID_REQUEST, "the filter says something unknown"))
            continue
        chosen = [
            acl_binding(pattern, entry)
            for pattern, entries in image.acls.items()
            if one.matches_pattern(pattern)
            for entry in sorted(entries)
            if one.matches_entry(entry)
        ]
        count += len(chosen)
        if count > CHANGES_MAX:
            message = f"at most {CHANGES_MAX} ACLs are deleted at once"
            results.append(Refused(ErrorCode.INVALID_REQUEST, message))
            continue
        for binding in chosen:
            _entries(changed, image, binding.pattern).discard(binding.entry)
        results.append(AclsDeleted(tuple(chosen)))
    return Decision(tuple(_records(changed, image)), tuple(results))


def _entries(changed: Entries, image: ClusterImage, pattern: ResourcePattern) -> set[AclEntry]:
    entries = changed.get(pattern)
    if entries is None:
        entries = changed[pattern] = set(image.acls.get(pattern, ()))
    return entries


def _records(changed: Entries, image: ClusterImage) -> Iterable[MetadataRecord]:
    for pattern, entries in changed.items():
        if entries != image.acls.get(pattern, frozenset()):
            yield AclsRecord(pattern, frozenset(entries))


def _binding_fault(binding: AclBinding) -> str | None:
    if binding.resource_type is ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        return f"the only valid name of the cluster is {CLUSTER_NAME}"
    if not binding.name:
        return "the name of the resource is empty"
    if max(len(binding.name), len(binding.principal), len(binding.host)) > NAME_LENGTH_MAX:
        return f"names are at most {NAME_LENGTH_MAX} characters long"
    if binding.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return "ACLs are for one type of resource"
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "resource patterns are literal or prefixed"
    if binding.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return "ACLs are for one operation, or for ALL"
    if binding.permission not in (PermissionType.ALLOW, PermissionType.DENY):
        return "ACLs allow or deny"
    kind, colon, name = binding.principal.partition(":")
    if not colon or not kind or not name:
        return f"{binding.principal!r} is no principal: it has to be of the form Type:name"
    return None


# -- quotas


def alter_client_quotas(command: AlterClientQuotas, image: ClusterImage) -> Decision:
    """Change the limits of each entity that is well-formed."""
    records: dict[QuotaEntity, MetadataRecord] = {}
    results: list[Result] = []
    seen: set[QuotaEntity] = set()
    for change in command.changes:
        decided = _changed_quotas(change, image)
        if isinstance(decided, Refused):
            results.append(decided)
            continue
        if decided.entity in seen:
            results.append(Refused(ErrorCode.INVALID_REQUEST, "an entity is named more than once"))
            continue
        seen.add(decided.entity)
        if decided.values != image.client_quotas.get(decided.entity, {}):
            records[decided.entity] = decided
        results.append(Done())
    return Decision(() if command.validate_only else tuple(records.values()), tuple(results))


def _changed_quotas(change: QuotaChange, image: ClusterImage) -> QuotasRecord | Refused:
    fault = _entity_fault(change)
    if fault is None and len(dict(change.values)) != len(change.values):
        fault = "a limit is named more than once"
    if fault is not None:
        return Refused(ErrorCode.INVALID_REQUEST, fault)
    entity = quota_entity(dict(change.entity))
    values = dict(image.client_quotas.get(entity, {}))
    keys = IP_KEYS if entity[0][0] == IP else CLIENT_KEYS
    for key, value in change.values:
        if value is None:
            values.pop(key, None)
            continue
        fault = _value_fault(key, value, keys)
        if fault is not None:
            return Refused(ErrorCode.INVALID_REQUEST, fault)
        values[key] = value
    return QuotasRecord(entity, values)


def _entity_fault(change: QuotaChange) -> str | None:
    kinds = [kind for kind, _ in change.entity]
    if not kinds:
        return "no entity is named"
    if len(set(kinds)) != len(kinds):
        return "an entity type is named more than once"
    unknown = [kind for kind in kinds if kind not in ENTITY_TYPES]
    if unknown:
        return f"there is no entity type {unknown[0]!r}"
    if any(name == "" or (name is not None and len(name) > NAME_LENGTH_MAX) for _, name in change.entity):
        return f"the name of an entity has 1 to {NAME_LENGTH_MAX} characters"
    if IP in kinds:
        if len(kinds) > 1:
            return "an address cannot be combined with a user or a client id"
        address = change.entity[0][1]
        if address is not None and not _is_address(address):
            return f"{address!r} is no IP address"
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _value_fault(key: str, value: float, keys: tuple[str, ...]) -> str | None:
    if key not in keys:
        return f"there is no limit {key!r} for this entity"
    if not value > 0:
        return f"{key} must be greater than 0"
    whole_max = WHOLE_NUMBER_MAX.get(key)
    if whole_max is not None:
        if value > whole_max:
            return f"{key} must not be greater than {whole_max}"
        if abs(value % 1.0) > _FRACTION_MAX:
            return f"{key} must be a whole number"
    return None

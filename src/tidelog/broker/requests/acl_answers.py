"""ACLs and filters between the protocol and the model; numbers that nobody knows become UNKNOWN."""

from enum import IntEnum
from typing import Any, TypeVar

from tidelog.model.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.model.errors import ErrorCode, Refused

E = TypeVar("E", bound=IntEnum)

SECURITY_DISABLED = Refused(
    ErrorCode.SECURITY_DISABLED, "No authorizer is configured on the broker (authorizer.class.name)."
)


def _known(kind: type[E], number: int) -> E:
    return kind(number) if number in kind._value2member_map_ else kind(0)


def binding_of(creation: Any) -> AclBinding:
    """The ACL that a row of CreateAcls asks for."""
    return AclBinding(
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _known(AclOperation, creation.operation),
        _known(PermissionType, creation.permission_type),
    )


def filter_of(asked: Any) -> AclFilter:
    """The filter of DescribeAcls, or of a row of DeleteAcls."""
    return AclFilter(
        _known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _known(AclOperation, asked.operation),
        _known(PermissionType, asked.permission_type),
    )

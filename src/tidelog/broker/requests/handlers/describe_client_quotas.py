"""DescribeClientQuotas (key 48), versions 0 and 1: the limits of entities that a filter chooses (KIP-546).

Each component of the filter names an entity type and asks for one name (match type 0), the default (1), or
any (2). With `strict` an entity has the types of the components and no others. No components choose all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.model.client_quotas import ENTITY_TYPES, IP, QuotaEntity
from tidelog.model.errors import ErrorCode, Refused

_EXACT, _DEFAULT, _ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object]:
        body = request.body
        refused = _fault(body.components)
        if refused is not None:
            return {**error_fields(refused), "entries": None}
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in self.metadata.image.client_quotas.items()
            if _chosen(entity, body.components, body.strict)
        ]
        return {**error_fields(None), "entries": entries}


def _fault(components: Any) -> Refused | None:
    kinds = [component.entity_type for component in components]
    if any(not kind for kind in kinds):
        return Refused(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type.")
    if len(set(kinds)) != len(kinds):
        return Refused(ErrorCode.INVALID_REQUEST, "An entity type is named more than once.")
    if any(kind not in ENTITY_TYPES for kind in kinds):
        return Refused(ErrorCode.UNSUPPORTED_VERSION, "The filter has an unknown entity type.")
    if IP in kinds and len(kinds) > 1:
        return Refused(ErrorCode.INVALID_REQUEST, "An address cannot be combined with a user or client id.")
    for component in components:
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            return Refused(ErrorCode.INVALID_REQUEST, f"There is no match type {component.match_type}.")
        if (component.match_type == _EXACT) != (component.match is not None):
            return Refused(ErrorCode.INVALID_REQUEST, "A name is for match type 0, and for no other.")
    return None


def _chosen(entity: QuotaEntity, components: Any, strict: bool) -> bool:
    names = dict(entity)
    if strict and len(names) != len(components):
        return False
    return all(
        component.entity_type in names
        and (component.match_type == _ANY or names[component.entity_type] == component.match)
        for component in components
    )

"""Client quotas as values: which limits hold for which users, client ids and addresses.

An entity is a set of (type, name) pairs, sorted by type; the name None stands for the default of its type:
those that have no limit of their own. The keys and their meaning are Kafka's.

    quotas/<type>/<name, as in a URL, or <default>>[/<type>/<name>]      {"producer_byte_rate": 1048576.0, …}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

QUOTAS_PREFIX = "quotas/"
#: the default of a type; a name is quoted and never reads like this
_DEFAULT_KEY = "<default>"

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
ENTITY_TYPES = (CLIENT_ID, IP, USER)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

#: the limits of users and client ids; those that count whole things must be whole numbers
CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
IP_KEYS = (CONNECTION_CREATION_RATE,)
WHOLE_NUMBER_MAX = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}

#: (type, name) pairs in order of their types
QuotaEntity = tuple[tuple[str, str | None], ...]
QuotaValues = Mapping[str, float]


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity made of these parts."""
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


@dataclass(frozen=True, slots=True)
class QuotasRecord:
    """Every limit that now holds for an entity; an empty mapping means there is none."""

    entity: QuotaEntity
    values: QuotaValues = field(default_factory=dict)

    def writes(self) -> tuple[tuple[str, bytes | None], ...]:
        path = "/".join(
            f"{kind}/{_DEFAULT_KEY if name is None else quote(name, safe='')}" for kind, name in self.entity
        )
        value = json.dumps(dict(self.values), separators=(",", ":"), sort_keys=True).encode()
        return ((QUOTAS_PREFIX + path, value if self.values else None),)

    @classmethod
    def from_entry(cls, parts: Sequence[str], fields: Mapping[str, Any]) -> "QuotasRecord":
        """Read back what `writes` wrote; what went away reads as no limits."""
        kinds, names = parts[::2], parts[1::2]
        if not kinds or not set(kinds) <= set(ENTITY_TYPES):
            raise ValueError("unknown kind of quota")
        entity = tuple(
            (kind, None if name == _DEFAULT_KEY else unquote(name))
            for kind, name in zip(kinds, names, strict=True)
        )
        return cls(entity, {key: float(value) for key, value in fields.items()})

"""One request as handlers see it: what was named in the path and the query, the body, who asks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidelog.client.cluster_logins import Operation
from tidelog.registry import subjects
from tidelog.registry.access import Access, Caller
from tidelog.registry.faults import BAD_REQUEST, RegistryFault
from tidelog.registry.service import Registry
from tidelog.registry.submitted import NUMBER_MAX

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was read."""

    registry: Registry
    access: Access
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The subject of the path; a context alone, and "" for everything, where the path allows them."""
        return subjects.normal(self.path.get("subject", ""))

    def text(self, name: str, default: str = "") -> str:
        found = self.query.get(name)
        return found[-1] if found else default

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.text(name)
        return found.lower() == "true" if found else default

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            found = int(text) if len(text) <= 11 else NUMBER_MAX + 1
        except ValueError:
            found = NUMBER_MAX + 1
        if not -1 <= found <= NUMBER_MAX:
            raise RegistryFault(BAD_REQUEST, f"the parameter '{name}' is a number up to 2^31-1")
        return found

    def schema_id(self) -> int:
        text = self.path["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= NUMBER_MAX):
            raise RegistryFault(404, "HTTP 404 Not Found")
        return int(text)

    def page(self, rows: Sequence[Row]) -> list[Row]:
        """The part of a list that is asked for."""
        start, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return list(rows[start : start + limit] if limit >= 0 else rows[start:])

    def require(self, subject: str, any_of: frozenset[Operation]) -> None:
        """Raise RegistryFault unless the caller may do one of these."""
        self.access.require(self.caller, subject, any_of)

    def allowed(self, names: Iterable[str], any_of: frozenset[Operation]) -> set[str]:
        return self.access.allowed(self.caller, names, any_of)

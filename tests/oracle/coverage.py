"""Which APIs and versions were exercised, against those that both systems offer."""

from collections import Counter
from collections.abc import Iterable

from tests.oracle.generator import Versions
from tests.oracle.session import Session


def covered_by(session: Session) -> set[tuple[str, int]]:
    """What a session asks for, by API and version."""
    return {(step.api, step.version) for step in session.steps if not step.cleanup}


class Coverage:
    """Counts steps by API and version."""

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self.counts: Counter[tuple[str, int]] = Counter()

    def note(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            self.counts.update((step.api, step.version) for step in session.steps if not step.cleanup)

    def missing(self) -> list[tuple[str, int]]:
        return [
            (api, version)
            for api, (first, last) in self.versions.items()
            for version in range(first, last + 1)
            if not self.counts[api, version]
        ]

    def table(self) -> str:
        lines = [f"{'API':30} versions  how often each"]
        for api, (first, last) in self.versions.items():
            counts = " ".join(str(self.counts[api, version]) for version in range(first, last + 1))
            lines.append(f"{api:30} {first:>3}-{last:<3}   {counts}")
        total = sum(last - first + 1 for first, last in self.versions.values())
        lines.append(f"{total - len(self.missing())} of {total} APIs and versions exercised")
        return "\n".join(lines)

"""A registry without a cluster: what it writes is applied at once, and kept for others to read.

registry = InMemoryRegistry()
browser = TestClient(create_application(registry, OpenAccess()))
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.client.client_settings import ClientSettings
from tidelog.registry.decisions import Change, Decisions
from tidelog.registry.election import Identity
from tidelog.registry.records import StoredRecord
from tidelog.registry.service import NotPrimary, Registry, RegistrySettings
from tidelog.registry.state import State

Answer = TypeVar("Answer")


class InMemoryRegistry(Registry):
    """Writes to a list; `elsewhere` makes another instance the one that writes."""

    def __init__(self) -> None:
        client = ClientSettings.from_options({"bootstrap.servers": "localhost:1"})
        super().__init__(RegistrySettings({}, client, Identity("http", "localhost", 1)))
        self.written: list[StoredRecord] = []
        self.elsewhere: str | None = None

    def start(self) -> None:
        """Nothing is to be read."""

    def stop(self) -> None:
        """Nothing runs."""

    def read(self, operation: Callable[[], Answer]) -> Answer:
        return operation()

    def change(self, decide: Callable[[Decisions], Change]) -> Any:
        if self.elsewhere is not None:
            raise NotPrimary(self.elsewhere)
        change = decide(self.decisions)
        for record in change.records:
            self.written.append(record)
            self.state.apply(record.key, record.value)
        return change.answer

    def replayed(self, *, compacted: bool = False) -> State:
        """What another instance makes of the same records."""
        records = self.written
        if compacted:
            last = {record.key: index for index, record in enumerate(records)}
            kept = sorted(last.values())
            records = [records[index] for index in kept if records[index].value is not None]
        state = State()
        for record in records:
            state.apply(record.key, record.value)
        return state

"""One instance against a log in memory: writes that are fenced, lost or unknown, and who is elected."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.client.client_settings import ClientSettings
from tidelog.registry import service
from tidelog.registry.decisions import Change, Decisions
from tidelog.registry.election import Identity, Primary, assign, read_assignment
from tidelog.registry.faults import NO_LEADER, RegistryFault
from tidelog.registry.records import StoredRecord
from tidelog.registry.schema_log import SchemaLog
from tidelog.registry.service import NotPrimary, Registry, RegistrySettings
from tidelog.registry.submitted import read_submitted
from tidelog.registry.writer import Fenced, FencedWriter, OutcomeUnknown

HERE, THERE = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Topic:
    """What every instance shares: records, and the epoch of whoever may write."""

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self.epoch = 0


class MemoryLog(SchemaLog):
    """Applies a topic in memory, up to its end when asked."""

    def __init__(self, topic: Topic, apply: Any) -> None:
        super().__init__({}, settings_of(HERE).client, "t", apply)
        self._shared = topic
        self._applied = 0

    def caught_up(self, seconds: float) -> None:
        while self._applied < len(self._shared.records):
            record = self._shared.records[self._applied]
            self._apply(record.key, record.value)
            self._applied += 1

    def wait_for(self, offset: int, seconds: float) -> None:
        self.caught_up(seconds)

    @property
    def position(self) -> int:
        return self._applied


class MemoryWriter(FencedWriter):
    """Appends while nobody claimed after it; `troubles` come first."""

    def __init__(self, topic: Topic, troubles: list[str]) -> None:
        self._shared = topic
        topic.epoch += 1
        self._epoch = topic.epoch
        self._troubles = troubles

    def write(self, records: Sequence[StoredRecord]) -> int:
        if self._epoch != self._shared.epoch:
            raise Fenced("another has claimed")
        trouble = self._troubles.pop(0) if self._troubles else ""
        if trouble == "lost":
            raise OutcomeUnknown("not written, as nobody knows")
        self._shared.records += records
        if trouble == "unheard":
            raise OutcomeUnknown("written, as nobody knows")
        return len(self._shared.records) - 1

    def close(self) -> None:
        """Nothing is open."""


class MemoryInstance(Registry):
    """An instance that claims at once when it is asked to write."""

    def __init__(self, topic: Topic, url: str, troubles: list[str] | None = None) -> None:
        super().__init__(settings_of(url))
        self._shared = topic
        self.troubles = troubles or []
        self.log = MemoryLog(topic, self.state.apply)

    def elect(self, url: str | None) -> None:
        self._primary_changed(Primary(url, url == self.settings.identity.url))

    def _await_writer(self) -> None:
        if self._primary.is_us and self._writer is None:
            self._writer = MemoryWriter(self._shared, self.troubles)
            self.log.caught_up(0)
        super()._await_writer()


def settings_of(url: str) -> RegistrySettings:
    client = ClientSettings.from_options({"bootstrap.servers": "localhost:1"})
    return RegistrySettings({}, client, Identity("http", "127.0.0.1", int(url.rpartition(":")[2])))


def register(instance: Registry, subject: str, text: str) -> int:
    submitted = read_submitted({"schema": text})

    def decide(decisions: Decisions) -> Change:
        return decisions.register(subject, submitted)

    return int(instance.change(decide).schema_id)


def test_a_write_with_an_unknown_outcome_is_decided_again() -> None:
    for trouble in ("lost", "unheard"):
        topic = Topic()
        instance = MemoryInstance(topic, HERE, [trouble])
        instance.elect(HERE)
        assert register(instance, "a", '"int"') == 1
        assert len([record for record in topic.records if b"SCHEMA" in record.key]) == 1, trouble
        assert topic.epoch == 2, "it claimed anew before it looked"


def test_an_instance_that_was_paused_writes_nothing_more() -> None:
    topic = Topic()
    old, new = MemoryInstance(topic, HERE), MemoryInstance(topic, THERE)
    old.elect(HERE)
    assert register(old, "a", '"int"') == 1
    new.elect(THERE)  # the old one stands still and hears nothing
    assert register(new, "b", '"long"') == 2
    before = list(topic.records)
    old.elect(THERE)
    with pytest.raises(NotPrimary) as elsewhere:
        register(old, "c", '"string"')
    assert elsewhere.value.url == THERE
    assert topic.records == before


def test_a_primary_that_knows_nothing_of_its_successor_is_fenced_and_catches_up() -> None:
    topic = Topic()
    old, new = MemoryInstance(topic, HERE), MemoryInstance(topic, THERE)
    for instance in (old, new):
        instance.elect(instance.settings.identity.url)  # each believes in itself
    assert register(old, "a", '"int"') == 1
    assert register(new, "b", '"long"') == 2
    assert register(old, "c", '"string"') == 3, "it claims anew, and reads what the other wrote first"
    assert register(new, "d", '"bytes"') == 4
    assert register(old, "e", '"long"') == 2


def test_nobody_writes_while_no_primary_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PRIMARY_SECONDS_MAX", 0.01)
    instance = MemoryInstance(Topic(), HERE)
    with pytest.raises(RegistryFault) as fault:
        register(instance, "a", '"int"')
    assert fault.value.code == NO_LEADER
    assert not instance.is_ready


def test_trouble_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    instance = MemoryInstance(topic, HERE, ["lost"] * 10)
    instance.elect(HERE)
    with pytest.raises(RegistryFault) as fault:
        register(instance, "a", '"int"')
    assert fault.value.code == 50002
    assert not topic.records


def test_what_is_not_found_is_looked_for_in_the_topic() -> None:
    topic = Topic()
    writing, reading = MemoryInstance(topic, HERE), MemoryInstance(topic, THERE)
    writing.elect(HERE)
    register(writing, "a", '"int"')
    assert reading.state.version("a", 1) is None

    def find() -> int:
        found = reading.state.version("a", 1)
        if found is None:
            raise RegistryFault(40402, "Version 1 not found.")
        return found.schema_id

    assert reading.read(find) == 1
    with pytest.raises(RegistryFault):
        reading.read(lambda: (_ for _ in ()).throw(RegistryFault(40401, "nothing")))


def member(host: str, port: int = 8081, **more: Any) -> bytes:
    return json.dumps({**Identity("http", host, port)._asdict(), "version": 1, **more}).encode()


def test_the_primary_stays_and_else_the_smallest_address_is_elected() -> None:
    members = {"m1": member("b"), "m2": member("a"), "m3": member("c", leader=True)}
    assert read_assignment(assign(members), "m3") == Primary("http://c:8081", True)
    del members["m3"]
    assert read_assignment(assign(members), "m2") == Primary("http://a:8081", True)
    assert read_assignment(assign(members), "m1") == Primary("http://a:8081", False)


def test_who_must_not_write_is_not_elected() -> None:
    members = {"m1": member("a", master_eligibility=False), "m2": b"{", "m3": b'{"host": 5}'}
    assert read_assignment(assign(members), "m1") == Primary(None, False)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"5", b'{"error": 1}', b'{"master_identity": 5}'])
def test_an_assignment_that_cannot_be_read_names_nobody(text: bytes) -> None:
    assert read_assignment(text, "m") == Primary(None, False)

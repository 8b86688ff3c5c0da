"""Sessions that Apache Kafka answered once: Tidelog answers them alike; what is broken on purpose is noticed.

`make oracle-record` makes the recording anew, `make oracle` runs both systems side by side.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle import recording, rules, systems
from tests.oracle.compatibility import PAGE, written
from tests.oracle.coverage import Coverage
from tests.oracle.planted import PLANTED, noticed_after
from tests.oracle.rules import Rule
from tests.oracle.runner import prepare
from tests.oracle.shrink import told
from tests.oracle.systems import System

#: planted differences that are tried in every run of the suite; `python -m tests.oracle --planted` tries all
SHORT = ("ListOffsets is one too high", "sequence numbers are not checked")


@pytest.fixture(scope="module")
def here() -> Iterator[System]:
    with systems.tidelog() as system:
        prepare(system)
        yield system


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("path", "count_min"), [(recording.ONE_BROKER, 50), (recording.LOST_ANSWERS, 10)])
def test_recorded_sessions_are_answered_as_kafka_did(here: System, path: Path, count_min: int) -> None:
    problems = []
    count = 0
    for number, recorded in enumerate(recording.read(path)):
        count += 1
        if found := recording.replay(here, recorded, f"o{path.stem[:4]}{number}-"):
            problems.append(told(recorded.session, found[:3]))
    assert not problems, "\n".join(problems[:3])
    assert count >= count_min


def test_the_page_on_compatibility_has_these_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m tests.oracle --compatibility"


def test_every_version_is_exercised_by_what_is_recorded() -> None:
    versions = {name: tuple(span) for name, span in recording.head(recording.ONE_BROKER)["versions"].items()}
    coverage = Coverage(versions)
    coverage.note(recorded.session for recorded in recording.read(recording.ONE_BROKER))
    assert coverage.missing() == []
    assert len(coverage.counts) >= sum(last - first + 1 for first, last in versions.values())


def test_a_rule_counts_for_what_was_recorded_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = next(recording.read(recording.ONE_BROKER))
    assert "error_message" not in json.dumps(recording.kafka_answers(recorded))
    assert "throttle_time" in json.dumps(recorded.transcript)
    more = Rule("*error_code", "drop", "to see a rule at work")
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, more))
    rules.rules_of.cache_clear()
    try:
        assert "error_code" not in json.dumps(recording.kafka_answers(recorded))
    finally:
        rules.rules_of.cache_clear()


@pytest.mark.parametrize("name", SHORT)
def test_a_planted_difference_is_noticed(name: str) -> None:
    assert noticed_after(PLANTED[name], 200) is not None

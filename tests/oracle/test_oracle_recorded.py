"""Sessions that Apache Kafka answered once: Tidelog answers them alike; what is broken on purpose is noticed.

`make oracle-record` makes the recording anew, `make oracle` runs both systems side by side.
"""

from collections.abc import Iterator

import pytest

from oracle import recording, systems
from oracle.compatibility import PAGE, written
from oracle.coverage import Coverage
from oracle.planted import PLANTED, noticed_after
from oracle.runner import prepare
from oracle.shrink import told
from oracle.systems import System

#: planted differences that are tried in every run of the suite; `python -m oracle --planted` tries all
SHORT = ("ListOffsets is one too high", "sequence numbers are not checked")

MISSING_MAX = 10


@pytest.fixture(scope="module")
def here() -> Iterator[System]:
    with systems.tidelog() as system:
        prepare(system)
        yield system


@pytest.mark.timeout(180)
def test_recorded_sessions_are_answered_as_kafka_did(here: System) -> None:
    problems = []
    count = 0
    for number, recorded in enumerate(recording.read(recording.ONE_BROKER)):
        count += 1
        if found := recording.replay(here, recorded, f"o{number}-"):
            problems.append(told(recorded.session, found[:3]))
    assert not problems, "\n".join(problems[:3])
    assert count >= 50


def test_the_page_on_compatibility_has_these_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: PYTHONPATH=tests python -m oracle --compatibility"


def test_every_version_is_exercised_by_what_is_recorded() -> None:
    """All but a few, which live runs reach: the recording has only so many sessions."""
    coverage = Coverage(
        {name: tuple(span) for name, span in recording.head(recording.ONE_BROKER)["versions"].items()}
    )
    coverage.note(recorded.session for recorded in recording.read(recording.ONE_BROKER))
    assert len(coverage.missing()) <= MISSING_MAX, coverage.missing()


@pytest.mark.parametrize("name", SHORT)
def test_a_planted_difference_is_noticed(name: str) -> None:
    assert noticed_after(PLANTED[name], 200) is not None

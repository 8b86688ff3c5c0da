"""A small one of the runs of `make iceberg-kills`: two kills, a second writer, a schema that changes."""

from pathlib import Path

from tests.chaos.iceberg_kills import run


def test_every_record_is_in_the_table_once(tmp_path: Path) -> None:
    outcome = run(records=2_000, kills=2, seed=3, folder=tmp_path)
    assert outcome.commits >= 1

"""A pipeline begins where its first start found the end, however often it is started."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipelines.test_pipelines_query_offsets import A0, A1, A2, LOGS, SmallCluster
from tidelog.client.faults import BadOption
from tidelog.pipelines.began_at import notes_folder, with_noted_start
from tidelog.pipelines.data_loss import DataLoss
from tidelog.pipelines.file_store import FileStore, LocalFiles
from tidelog.pipelines.offset_planning import Offsets
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import SourceOptions

BASE = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "group.id": "g"}


class Pipeline:
    """Starts with a checkpoint, on a cluster that changes."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = str(folder)
        self.cluster: Any = SmallCluster(LOGS)

    def options(self, **given: str) -> dict[str, str]:
        return with_noted_start(
            {**BASE, **given}, self.checkpoint, LocalFiles, lambda _: nullcontext(self.cluster)
        )

    def start(self, **given: str) -> Offsets:
        """Where Spark would be told that the query begins."""
        read = SourceOptions.read(self.options(**given), streaming=True)
        return QueryOffsets(read, self.cluster).starting()


def test_the_end_is_found_once(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    assert pipeline.start(startingOffsets="latest") == {A0: 100, A1: 50}
    pipeline.cluster.logs.update({A0: (0, 170), A1: (20, 60)})
    assert pipeline.start(startingOffsets="latest") == {A0: 100, A1: 50}
    assert pipeline.start(StartingOffsets="Latest", maxOffsetsPerTrigger="5") == {A0: 100, A1: 50}
    # Another source, or another moment, has a beginning of its own.
    assert pipeline.start(startingOffsets="latest", isolationLevel="read_uncommitted") == {A0: 170, A1: 60}
    assert pipeline.start(startingTimestamp="120", startingOffsetsByTimestampStrategy="latest") == {
        A0: 120,
        A1: 60,
    }
    assert len(list(Path(notes_folder(pipeline.checkpoint)).iterdir())) == 3


def test_other_options_stay_as_they_are(tmp_path: Path) -> None:
    made = Pipeline(tmp_path).options(startingTimestamp="7", includeHeaders="true")
    assert made.pop("startingOffsets") == '{"a": {"0": 7, "1": 20}}'
    assert made == {**BASE, "includeHeaders": "true", "startingoffsetsstrategy": "earliest"}


def test_what_is_new_is_read_from_its_beginning_and_what_is_gone_is_lost(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.start(startingOffsets="latest")
    pipeline.cluster.logs[A2] = (0, 9)
    assert pipeline.start(startingOffsets="latest") == {A0: 100, A1: 50, A2: 0}
    del pipeline.cluster.logs[A1]
    with pytest.raises(DataLoss, match="partitions a-1 are gone"):
        pipeline.start(startingOffsets="latest")
    assert pipeline.start(startingOffsets="latest", failOnDataLoss="false") == {A0: 100, A2: 0}


def test_the_beginning_and_offsets_need_no_note(tmp_path: Path) -> None:
    def nowhere() -> FileStore:
        raise AssertionError("nothing is to be noted")

    for start in ("earliest", '{"a":{"0":23,"1":-2}}'):
        given = {**BASE, "startingOffsets": start}
        assert with_noted_start(given, str(tmp_path), nowhere) == given
    # With an end among them, the beginning stays what it is, wherever retention moves it.
    pipeline = Pipeline(tmp_path)
    assert pipeline.start(startingOffsets='{"a":{"0":-1,"1":-2}}') == {A0: 100, A1: 20}
    pipeline.cluster.logs.update({A0: (0, 170), A1: (30, 60)})
    assert pipeline.start(startingOffsets='{"a":{"0":-1,"1":-2}}') == {A0: 100, A1: 30}


def test_each_cluster_has_its_own(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.start(startingOffsets="latest")
    pipeline.cluster = SmallCluster({A0: (0, 7)})
    pipeline.cluster.cluster_id = "two"
    assert pipeline.start(startingOffsets="latest") == {A0: 7}


def test_a_checkpoint_that_got_further_without_a_note_goes_on_without(tmp_path: Path) -> None:
    given = {"startingTimestamp": "120"}
    pipeline = Pipeline(tmp_path)
    # There is no such record any more: to ask for it would be refused, and nobody needs to know.
    (tmp_path / "orders/commits").mkdir(parents=True)
    (tmp_path / "orders/commits/0").write_text("v1")
    assert pipeline.options(**given) == {**BASE, **given}
    (tmp_path / "orders/commits/0").unlink()
    with pytest.raises(BadOption, match="no record at or after"):
        pipeline.options(**given)

"""Which group a query commits to, by the options that its source is given."""

from typing import Any

import pytest

from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import stream_topic

RUN = RunSettings("orders", kafka={"kafka.bootstrap.servers": "x:1"}, checkpoint="/c")


class Reader:
    """As much of Spark as a source is made with."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    @property
    def readStream(self) -> "Reader":  # noqa: N802 (Spark's name)
        return self

    def format(self, name: str) -> "Reader":
        assert name == "tidelog"
        return self

    def options(self, **given: str) -> "Reader":
        self.given.update(given)
        return self

    def load(self) -> dict[str, str]:
        return self.given


def given(query: str, options: dict[str, str] | None = None, **more: Any) -> dict[str, str]:
    frame: dict[str, str] = stream_topic(Reader(), RUN, query, "t", options, **more)
    return frame


def test_each_query_has_a_group_of_its_own() -> None:
    assert given("aggregate")["group.id"] == "tidelog-pipeline-orders-aggregate"
    guard = given("aggregate-dead", {"maxOffsetsPerTrigger": "5"}, beside=True)
    assert guard["group.id"] == "tidelog-pipeline-orders-aggregate-dead"
    assert guard["maxOffsetsPerTrigger"] == "5" and "commitOffsets" not in guard


@pytest.mark.parametrize("name", ["group.id", "Group.Id"])
def test_a_group_that_is_named_is_that_of_the_first_query_alone(name: str) -> None:
    assert "commitOffsets" not in given("aggregate", {name: "mine"})
    assert given("aggregate-dead", {name: "mine"}, beside=True)["commitOffsets"] == "false"

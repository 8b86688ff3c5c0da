"""The options of the source: what they mean, and what they say when they cannot be meant."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.client_settings import OPTIONS, READ_UNCOMMITTED
from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.source_options import NAMES, SourceOptions, parse_duration_ms

PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"


def read(streaming: bool = True, **options: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", **options}
    return SourceOptions.read(
        {name: value for name, value in given.items() if value != ""}, streaming=streaming
    )


def test_defaults() -> None:
    stream, batch = read(), read(streaming=False)
    assert (stream.starting.word, batch.starting.word, batch.ending.word) == ("latest", "earliest", "latest")
    assert stream.fail_on_data_loss and stream.commit_offsets
    assert not stream.include_headers and stream.offsets_per_trigger_max is None


def test_names_are_not_case_sensitive() -> None:
    options = SourceOptions.read(
        {"KAFKA.bootstrap.Servers": "a:1", "SUBSCRIBE": " b , a,", "startingoffsets": "EARLIEST"},
        streaming=True,
    )
    assert (options.topics, options.starting.word) == (("a", "b"), "earliest")


def test_timestamps_go_before_offsets() -> None:
    both: dict[str, Any] = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":5}}'}
    assert read(**both).starting.timestamps_ms == {TopicPartition("t", 0): 5}
    assert read(**both, startingTimestamp="9").starting.timestamp_ms == 9


def test_client_options_are_passed_on() -> None:
    options = read(**{"kafka.client.id": "me", "isolationLevel": "read_uncommitted", "kafka.group.id": "g"})  # type: ignore[arg-type]
    assert options.client.client_id == "me"
    assert options.client.isolation_level == READ_UNCOMMITTED
    assert options.group_id == "g"


@pytest.mark.parametrize(
    ("streaming", "options", "words"),
    [
        (True, {"kafka.bootstrap.servers": ""}, 'option("kafka.bootstrap.servers"'),
        (True, {"subscribe": ""}, "exactly one of subscribe"),
        (True, {"assign": '{"t":[0]}'}, "given: subscribe, assign"),
        (True, {"subscribe": "", "subscribePattern": "("}, "no regular expression"),
        (True, {"subscribe": " , "}, "names no topic"),
        (True, {"endingOffsets": "latest"}, "trigger(availableNow=True)"),
        (False, {"startingOffsets": "latest"}, "reads nothing in a batch query"),
        (False, {"startingOffsets": '{"t":{"0":-1}}'}, "reads nothing in a batch query"),
        (False, {"endingOffsets": "earliest"}, "reads nothing"),
        (False, {"endingOffsets": '{"t":{"0":-2}}'}, "reads nothing"),
        (True, {"startingOffsets": '{"t":{"0":-3}}'}, "-2 for earliest"),
        (True, {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "milliseconds since 1970"),
        (True, {"startingOffsetsByTimestampStrategy": "later"}, "error or latest"),
        (True, {"startingOffsetsStrategy": "latest"}, "error or earliest"),
        (True, {"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        (True, {"kafka.value.deserializer": "x"}, "CAST(value AS STRING)"),
        (True, {"maxOffsetPerTrigger": "1"}, "is 'maxOffsetsPerTrigger' meant?"),
        (True, {"startingOffset": "latest"}, "is 'startingOffsets' meant?"),
        (True, {"maxOffsetsPerTrigger": "0"}, "at least 1"),
        (True, {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "is above"),
        (True, {"maxTriggerDelay": "a while"}, "15m"),
        (True, {"failOnDataLoss": "maybe"}, "true or false"),
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(
    streaming: bool, options: dict[str, str], words: str
) -> None:
    with pytest.raises(BadOption) as refused:
        read(streaming, **options)
    assert words in str(refused.value)


def test_other_names_are_passed_over() -> None:
    read(**{"fetchOffset.numRetries": "3", "somethingElse": "x"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("200ms", 200),
        ("30 seconds", 30_000),
        ("1 hour", 3_600_000),
        ("5", 5),
        ("2 mins", 120_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


def test_every_option_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`([\w.]+)`", page))
    assert set(NAMES) <= documented
    assert {name for row in OPTIONS.values() for name in row.names} <= documented

"""Settings of topics that are copied: what is copied, what is refused, what is followed; and on a broker."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.configs import ConfigResource, ConfigSource, ConfigView, alter_configs
from tidelog.client.faults import BadOption
from tidelog.pipelines.file_store import LocalFiles
from tidelog.pipelines.settings_in_step import SettingsInStep
from tidelog.pipelines.target_topics import client_settings, make_missing
from tidelog.pipelines.topic_settings import (
    COPIED,
    LEAVE,
    OVERWRITE,
    OtherSettings,
    SettingsCopy,
    bring_in_step,
    change,
    check_copies,
    losses_of,
    read_memory,
    settings_for_missing,
    views_of,
    wanted,
    write_memory,
)
from tidelog.testing.broker import RunningBroker

DAY_MS = "86400000"


def views(**values: str) -> dict[str, ConfigView]:
    """Settings of a topic; those that are not named have their defaults."""
    return views_from(ConfigSource.TOPIC, **values)


def views_from(source: ConfigSource, **values: str) -> dict[str, ConfigView]:
    defaults = {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": "1048588",
        "min.insync.replicas": "1",
    }
    found = {
        name: ConfigView(name, value, ConfigSource.DEFAULT, False, False, value)
        for name, value in defaults.items()
    }
    given = {name.replace("_", "."): value for name, value in values.items()}
    set_ones = {
        name: ConfigView(name, value, source, False, False, defaults.get(name))
        for name, value in given.items()
    }
    return found | set_ones


def test_what_keeps_records_is_copied_whoever_has_set_it_and_what_belongs_to_the_place_is_not() -> None:
    source = views_from(ConfigSource.STATIC_BROKER, retention_ms="-1", max_message_bytes="7")
    source |= views(cleanup_policy="compact", min_insync_replicas="2", segment_ms="5")
    source["retention.ms"] = views_from(ConfigSource.STATIC_BROKER, retention_ms="-1")["retention.ms"]
    assert wanted(source) == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.ms": "5",
        "message.timestamp.type": "CreateTime",
    }


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ({}, {"cleanup_policy": "compact"}, "compaction would remove"),
        ({}, {"cleanup_policy": "compact,delete"}, "compaction would remove"),
        ({"cleanup_policy": "compact"}, {}, "retention would remove"),
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "delete,compact"}, "retention would remove"),
        ({"retention_ms": "-1"}, {}, "retention.ms is 604800000, and -1"),
        ({}, {"retention_ms": DAY_MS}, "retention.ms is 86400000"),
        ({}, {"retention_bytes": "1000"}, "retention.bytes is 1000"),
        ({}, {"message_timestamp_type": "LogAppendTime"}, "lose their timestamps"),
    ],
)
def test_what_loses_records(source: Mapping[str, str], target: Mapping[str, str], words: str) -> None:
    found = change(views(**source), views(**target), None)
    assert any(words in loss for loss in found.losses), found
    assert change(views(**source), views(**target), {}).losses, "nothing of it was ours"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({}, {}),
        ({"retention_ms": DAY_MS}, {}),
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "compact"}),
        ({"cleanup_policy": "compact, delete"}, {"cleanup_policy": "delete,compact"}),
        ({}, {"retention_ms": "-1"}),
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "compact", "retention_ms": "5"}),
        ({"message_timestamp_type": "LogAppendTime"}, {}),
        ({"max_message_bytes": "5000000"}, {}),
    ],
)
def test_what_loses_nothing(source: Mapping[str, str], target: Mapping[str, str]) -> None:
    assert not list(losses_of(views(**source), views(**target)))


def test_what_the_pipeline_has_set_itself_is_followed_and_what_others_have_set_is_not() -> None:
    source, target = views(retention_ms="-1"), views(retention_ms=DAY_MS)
    assert change(source, target, {"retention.ms": DAY_MS}).losses == ()
    assert change(source, target, {"retention.ms": "5"}).losses != ()
    source, target = views(), views(segment_ms="5", compression_type="zstd")
    assert change(source, target, {"segment.ms": "5"}).removed == ("segment.ms",)


# ---------------------------------------------------------------- on a broker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(mode="thread") as running:
        yield running


def kafka_of(broker: RunningBroker) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap}


def set_in(broker: RunningBroker, topic: str, **values: str) -> None:
    with ClusterAdmin(lambda: client_settings(kafka_of(broker))) as admin:
        named = {name.replace("_", "."): value for name, value in values.items()}
        alter_configs(admin, ConfigResource.TOPIC, topic, named)


def settings_of(broker: RunningBroker, topic: str) -> dict[str, str | None]:
    found = views_of(kafka_of(broker), topic)
    assert found is not None
    return {
        name: view.value
        for name, view in found.items()
        if view.source is ConfigSource.TOPIC and name in (*COPIED, "min.insync.replicas")
    }


def copy_of(broker: RunningBroker, name: str, **settings: str) -> SettingsCopy:
    broker.create_topic(name, 1)
    set_in(broker, name, **settings)
    return SettingsCopy(name, f"{name}-copy", kafka_of(broker), kafka_of(broker))


def make(broker: RunningBroker, copy: SettingsCopy) -> dict[str, dict[str, str]]:
    return make_missing(
        copy.source, copy.target, {copy.topic: copy.to}, settings=lambda _: settings_for_missing(copy)
    )


def test_a_topic_that_is_made_has_the_settings_of_its_source(broker: RunningBroker, tmp_path: Path) -> None:
    copy = copy_of(broker, "made", cleanup_policy="compact", retention_ms="-1", max_message_bytes="2000000")
    (note,) = check_copies([copy], str(tmp_path)).notes
    assert note.startswith("topic made-copy is made with") and "cleanup.policy=compact" in note
    make(broker, copy)
    assert settings_of(broker, "made-copy") == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": "2000000",
    }
    assert check_copies([copy], str(tmp_path)).notes == ()


def test_a_topic_that_would_lose_records_is_refused_and_left_alone(
    broker: RunningBroker, tmp_path: Path
) -> None:
    copy = copy_of(broker, "kept", retention_ms="-1")
    broker.create_topic(copy.to, 1)
    with pytest.raises(OtherSettings, match=r"would lose records: retention\.ms is 604800000, and -1"):
        bring_in_step(copy, {})
    assert settings_of(broker, copy.to) == {}
    (problem,) = check_copies([copy], str(tmp_path)).problems
    assert "tidelog topic alter kept-copy" in problem.sentence and problem.where == ("options", "to")
    assert check_copies([replace(copy, mode=LEAVE)], str(tmp_path)).problems == ()
    overwriting = replace(copy, mode=OVERWRITE)
    (note,) = check_copies([overwriting], str(tmp_path)).notes
    assert "kept-copy gets the settings of kept: retention.ms=-1" in note
    bring_in_step(overwriting, {})
    assert settings_of(broker, copy.to)["retention.ms"] == "-1"


def test_the_source_is_followed_while_it_runs_and_over_restarts(
    broker: RunningBroker, tmp_path: Path
) -> None:
    copy = copy_of(broker, "followed", retention_ms=DAY_MS, segment_ms="600000")
    store, checkpoint = LocalFiles(), str(tmp_path)
    memory = make(broker, copy)
    write_memory(store, checkpoint, memory)
    in_step = SettingsInStep([copy], memory, store, checkpoint, look_seconds=0.05)
    in_step.look()
    assert in_step.message == ""
    set_in(broker, copy.topic, retention_ms="-1", cleanup_policy="compact")
    in_step.look()
    assert settings_of(broker, copy.to)["cleanup.policy"] == "compact"
    assert "cleanup.policy=compact, retention.ms=-1, as followed has them" in in_step.message
    # It stops; the source changes, to what would have been refused in a topic of others.
    memory = read_memory(store, checkpoint)
    assert memory[copy.to]["retention.ms"] == "-1"
    set_in(broker, copy.topic, cleanup_policy="delete", retention_ms=DAY_MS)
    with ClusterAdmin(lambda: client_settings(copy.source)) as admin:
        alter_configs(admin, ConfigResource.TOPIC, copy.topic, {}, ["segment.ms"])
    assert check_copies([copy], checkpoint).problems == ()
    bring_in_step(copy, memory)
    assert settings_of(broker, copy.to) == {
        "cleanup.policy": "delete",
        "retention.ms": DAY_MS,
        "retention.bytes": "-1",
    }
    in_step.start()
    in_step.close()


def test_trouble_does_not_stop_the_pipeline_and_is_told(broker: RunningBroker, tmp_path: Path) -> None:
    copy = copy_of(broker, "vanishing", retention_ms="-1")
    in_step = SettingsInStep([copy], make(broker, copy), LocalFiles(), str(tmp_path))
    missing = SettingsInStep([replace(copy, topic="nowhere")], {copy.to: {}}, LocalFiles(), str(tmp_path))
    missing.look()
    assert "are not in step with nowhere" in missing.message
    in_step.look()
    assert in_step.message == ""
    with pytest.raises(BadOption, match="nowhere is not there"):
        settings_for_missing(replace(copy, topic="nowhere"))

"""`mirror` and `replay` into a cluster whose own retention would take the records: their copies keep them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ready_runs import definition, received, run_ready, send, start_ready
from tidelog.pipelines import settings_in_step
from tidelog.pipelines.topic_settings import OtherSettings, views_of
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 60
#: retention strikes within a second what is older than a minute
SHORT = {
    "log.retention.ms": "60000",
    "log.retention.check.interval.ms": "300",
    "log.segment.bytes": "1048576",
}
LONG_AGO_MS = 1_700_000_000_000

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def other() -> Iterator[RunningBroker]:
    with RunningBroker(SHORT, mode="process") as running:
        yield running


def setting(broker: RunningBroker, topic: str, name: str) -> str | None:
    views = views_of({"kafka.bootstrap.servers": broker.bootstrap}, topic)
    assert views is not None
    return views[name].value


def set_in(bootstrap: str, topic: str, **values: str) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)


def old_records(count: int) -> list[dict[str, Any]]:
    return [{"key": f"{n % 7}", "value": f"{n}", "timestamp": LONG_AGO_MS + n} for n in range(count)]


def keys_and_values(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    return [(message.key(), message.value()) for message in received(bootstrap, topic)]


def test_a_mirror_keeps_what_its_source_keeps_and_follows_its_settings(
    spark: Any,
    bootstrap: str,
    other: RunningBroker,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings_in_step, "LOOK_SECONDS", 0.3)
    topic = make_topic(1)
    send(bootstrap, topic, old_records(300))
    given = definition(bootstrap, tmp_path, "mirror", topic=topic, to_bootstrap=other.bootstrap)
    works = start_ready(spark, {**given, "trigger": "continuous"})
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while works[0].progress().rows < 300:
            assert time.monotonic() < deadline and works[0].is_active()
            time.sleep(0.1)
        assert setting(other, topic, "retention.ms") == "-1"
        set_in(bootstrap, topic, cleanup_policy="compact,delete")
        while setting(other, topic, "cleanup.policy") != "compact,delete":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "cleanup.policy=compact,delete" in works[0].progress().message
    finally:
        for work in works:
            work.stop()
    time.sleep(2)  # retention has looked several times
    assert keys_and_values(other.bootstrap, topic) == keys_and_values(bootstrap, topic)


def test_a_mirror_refuses_a_topic_that_would_lose_records(
    spark: Any, bootstrap: str, other: RunningBroker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    send(bootstrap, topic, old_records(5))
    other.create_topic(topic, 1)
    given = definition(bootstrap, tmp_path, "mirror", topic=topic, to_bootstrap=other.bootstrap)
    with pytest.raises(OtherSettings, match=r"retention\.ms is 60000, and -1 in the source"):
        run_ready(spark, given)
    assert received(other.bootstrap, topic) == []
    given["options"]["settings"] = "overwrite"
    run_ready(spark, given)
    assert len(received(other.bootstrap, topic)) == 5


def test_a_replay_keeps_what_its_source_keeps(spark: Any, other: RunningBroker, tmp_path: Path) -> None:
    """Of a compacted topic, and of an archive that is older than the cluster keeps records."""
    other.create_topic("kept", 1)
    set_in(other.bootstrap, "kept", retention_ms="-1")
    send(other.bootstrap, "kept", old_records(50))
    run_ready(spark, definition(other.bootstrap, tmp_path / "a", "replay", topic="kept", to="again"))
    path = str(tmp_path / "archive")
    run_ready(spark, definition(other.bootstrap, tmp_path / "b", "archive", topic="kept", path=path))
    run_ready(spark, definition(other.bootstrap, tmp_path / "c", "replay", path=path, to="unpacked"))
    time.sleep(2)  # retention has looked several times
    expected = keys_and_values(other.bootstrap, "kept")
    assert len(expected) == 50
    assert keys_and_values(other.bootstrap, "again") == expected
    assert keys_and_values(other.bootstrap, "unpacked") == expected
    other.create_topic("short", 1)
    refused = definition(other.bootstrap, tmp_path / "d", "replay", path=path, to="short")
    with pytest.raises(RuntimeError, match=r"the archive has older records"):
        run_ready(spark, refused)

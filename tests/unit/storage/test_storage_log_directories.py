"""Data directories: locks, identity, the clean-shutdown marker, checkpoints, and the logs in them."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tests.unit.storage.storage_logs import NOW_MS, append, file_bytes, new_disk, overwrite, read_all
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.storage.disk import Disk, OsDisk
from tidelog.storage.log_directories import LogDirectories, parse_folder_name
from tidelog.storage.log_directory import LogDirectoryUnusable, read_meta_properties, stored_cluster_id
from tidelog.storage.partition_metadata import read_topic_id

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def disk() -> SimulatedDisk:
    return new_disk(5)


def open_directories(disk: Disk, *paths: str, cluster_id: str = "c1", node_id: int = 1) -> LogDirectories:
    return LogDirectories.open(disk, paths or ("/data",), cluster_id=cluster_id, node_id=node_id)


def open_all(directories: LogDirectories) -> None:
    directories.open_all(lambda _: LogConfig(), now_ms=NOW_MS)


def test_a_second_broker_is_told_who_is_in_the_way(tmp_path: Path) -> None:
    directories = open_directories(OsDisk(), str(tmp_path / "a"))
    with pytest.raises(LogDirectoryUnusable, match="in use by another broker"):
        open_directories(OsDisk(), str(tmp_path / "b"), str(tmp_path / "a"))
    directories.close()
    open_directories(OsDisk(), str(tmp_path / "b"), str(tmp_path / "a")).close()


def test_a_directory_remembers_its_owner(disk: SimulatedDisk) -> None:
    assert stored_cluster_id(disk, ["/data"]) is None
    open_directories(disk).close()
    properties = read_meta_properties(disk, "/data")
    assert properties is not None and (properties.cluster_id, properties.node_id) == ("c1", 1)
    assert len(properties.directory_id) == 22
    assert stored_cluster_id(disk, ["/other", "/data"]) == "c1"
    with pytest.raises(LogDirectoryUnusable, match="belongs to cluster c1"):
        open_directories(disk, cluster_id="c2")
    with pytest.raises(LogDirectoryUnusable, match="belongs to broker 1"):
        open_directories(disk, node_id=2)
    assert open_directories(disk).directories[0].directory_id == properties.directory_id


def test_kafkas_own_meta_properties_are_read(disk: SimulatedDisk) -> None:
    overwrite(
        disk,
        "/data/meta.properties",
        b"#\n#Sat Nov 15 09:00:00 UTC 2026\nnode.id=1\ndirectory.id=abc\nversion=1\ncluster.id=c1\n",
    )
    assert open_directories(disk).directories[0].directory_id == "abc"


@pytest.mark.parametrize(
    "content", [b"version=1\n", b"", b"version=0\nbroker.id=1\n", b"version=1\nnode.id=x\n"]
)
def test_damaged_properties_are_named(disk: SimulatedDisk, content: bytes) -> None:
    overwrite(disk, "/data/meta.properties", content)
    with pytest.raises(LogDirectoryUnusable, match=r"/data/meta\.properties"):
        open_directories(disk)


def test_an_unusable_directory_is_offline_and_the_others_are_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    directories = open_directories(OsDisk(), str(tmp_path / "good"), str(tmp_path / "file"))
    assert [each.path for each in directories.directories] == [str(tmp_path / "good")]
    assert [each.path for each in directories.offline] == [str(tmp_path / "file")]
    directories.close()
    with pytest.raises(LogDirectoryUnusable, match="file: it cannot be used"):
        open_directories(OsDisk(), str(tmp_path / "file"))
    open_directories(OsDisk(), str(tmp_path / "good")).close()


def directory_ids(directories: LogDirectories) -> dict[str, str]:
    return {each.path: each.directory_id for each in directories.directories}


def test_directories_keep_their_ids_in_any_order(disk: SimulatedDisk) -> None:
    directories = open_directories(disk, "/x", "/y")
    ids = directory_ids(directories)
    assert len(set(ids.values())) == 2
    directories.close()
    again = open_directories(disk, "/y", "/x")
    assert directory_ids(again) == ids


def test_an_empty_directory_is_not_taken_for_one_that_is_missing(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    directories = open_directories(disk, "/x", "/y")
    ids = directory_ids(directories)
    directories.close()
    disk.remove_tree("/y")
    known = {ids["/x"]: 1, ids["/y"]: 3}

    def reopen(**options: Any) -> LogDirectories:
        return LogDirectories.open(disk, ("/x", "/y"), cluster_id="c1", node_id=1, **options)

    held_back = reopen(replica_counts=known)
    assert directory_ids(held_back) == {"/x": ids["/x"]}
    [offline] = held_back.offline
    assert offline.path == "/y" and "3 replicas" in offline.reason
    assert f"tidelog.lost.directories={ids['/y']}" in offline.reason
    assert read_meta_properties(disk, "/y") is None, "it is left as it is"
    held_back.close()
    # Nothing was there as far as the cluster knows; or somebody said that it is lost.
    for options in ({"replica_counts": {ids["/x"]: 1}}, {"replica_counts": known, "lost": (ids["/y"],)}):
        taken = reopen(**options)
        assert not taken.offline and directory_ids(taken)["/y"] != ids["/y"]
        assert f"/y is new, and begins as directory.id {directory_ids(taken)['/y']}" in caplog.text
        taken.close()
        disk.remove_tree("/y")
    # All are empty: another machine in the broker's place.
    disk.remove_tree("/x")
    assert not reopen(replica_counts=known).offline


def test_a_directory_of_another_broker_and_a_copy_are_refused(disk: SimulatedDisk) -> None:
    open_directories(disk, "/x", "/y").close()
    open_directories(disk, "/z", node_id=2).close()
    with pytest.raises(LogDirectoryUnusable, match="/z belongs to broker 2, this is broker 1"):
        open_directories(disk, "/x", "/z")
    properties = read_meta_properties(disk, "/x")
    assert properties is not None
    disk.replace_atomically("/y/meta.properties", properties.encode())
    with pytest.raises(LogDirectoryUnusable, match=r"/x and /y have the same directory\.id"):
        open_directories(disk, "/x", "/y")


def test_a_directory_without_an_id_gets_one(disk: SimulatedDisk) -> None:
    disk.make_directory("/x")
    disk.replace_atomically("/x/meta.properties", b"version=1\ncluster.id=c1\nnode.id=1\n")
    directories = open_directories(disk, "/x")
    [made] = directory_ids(directories).values()
    assert len(made) == 22
    directories.close()
    assert directory_ids(open_directories(disk, "/x")) == {"/x": made}


def test_the_marker_says_whether_the_stop_was_clean(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    assert not directories.directories[0].clean_shutdown
    directories.close()
    assert disk.exists("/data/.kafka_cleanshutdown")
    directories = open_directories(disk)
    assert directories.directories[0].clean_shutdown
    assert not disk.exists("/data/.kafka_cleanshutdown")
    disk = disk.kill()
    assert not open_directories(disk).directories[0].clean_shutdown


def test_logs_come_back_after_a_clean_stop_and_after_a_crash(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS, topic_id=TOPIC_ID)
    assert directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS) is log
    first = append(log, [NOW_MS])
    append(log, [NOW_MS] * 3)
    log.advance_log_start(2)
    directories.close(high_watermarks={ORDERS: 4})
    assert file_bytes(disk, "/data/recovery-point-offset-checkpoint") == b"0\n1\norders 0 4\n"
    assert file_bytes(disk, "/data/log-start-offset-checkpoint") == b"0\n1\norders 0 2\n"
    assert file_bytes(disk, "/data/replication-offset-checkpoint") == b"0\n1\norders 0 4\n"

    directories = open_directories(disk)
    open_all(directories)
    log = directories.logs[ORDERS]
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (2, 4, TOPIC_ID)
    assert log.recovery_point == 4 and directories.high_watermark(ORDERS) == 4
    append(log, [NOW_MS])
    disk = disk.kill()
    directories = open_directories(disk)
    open_all(directories)
    log = directories.logs[ORDERS]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (2, 5, 4)
    assert first.data not in read_all(log)


def test_trouble_while_closing_leaves_that_directory_for_recovery(disk: SimulatedDisk) -> None:
    directories = open_directories(disk, "/data/a", "/data/b")
    for partition in range(2):
        log = directories.open_log(TopicPartition("t", partition), LogConfig(), now_ms=NOW_MS)
        append(log, [NOW_MS])
    disk.fail_operation(1)
    directories.close()
    directories = open_directories(disk, "/data/a", "/data/b")
    assert [directory.clean_shutdown for directory in directories.directories] == [False, True]
    open_all(directories)
    assert [log.log_end_offset for log in directories.logs.values()] == [1, 1]


def test_new_logs_go_to_the_directory_with_the_fewest(disk: SimulatedDisk) -> None:
    directories = open_directories(disk, "/data/a", "/data/b", "/data/c")
    for partition in range(7):
        directories.open_log(TopicPartition("t", partition), LogConfig(), now_ms=NOW_MS)
    counts = [
        len([n for n in disk.list(path) if n.startswith("t-")]) for path in ("/data/a", "/data/b", "/data/c")
    ]
    assert counts == [3, 2, 2]
    assert directories.directory_of(TopicPartition("t", 1)).path == "/data/b"
    directories.close()
    directories = open_directories(disk, "/data/a", "/data/b", "/data/c")
    open_all(directories)
    assert len(directories.logs) == 7
    # Known before the log is open: a stored log is found where it is, not begun anew elsewhere.
    again = open_directories(disk.kill(), "/data/c", "/data/b", "/data/a")
    log = again.open_log(TopicPartition("t", 0), LogConfig(), now_ms=NOW_MS)
    assert log.directory == "/data/a/t-0"


def test_closing_from_several_threads(tmp_path: Path) -> None:
    directories = open_directories(OsDisk(), str(tmp_path / "data"))
    for partition in range(20):
        append(directories.open_log(TopicPartition("t", partition), LogConfig(), now_ms=NOW_MS), [NOW_MS])
    directories.close(threads=4)
    directories = open_directories(OsDisk(), str(tmp_path / "data"))
    assert directories.directories[0].clean_shutdown
    open_all(directories)
    assert {log.recovery_point for log in directories.logs.values()} == {1}
    directories.close()


def test_one_partition_in_two_places_is_refused(disk: SimulatedDisk) -> None:
    directories = open_directories(disk, "/data/a", "/data/b")
    disk.make_directory("/data/a/t-0")
    disk.make_directory("/data/b/t-0")
    with pytest.raises(LogDirectoryUnusable, match="/data/a/t-0 and in /data/b/t-0"):
        open_all(directories)


def test_deleting_a_log_renames_its_folder_at_once(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    batch = append(log, [NOW_MS])
    log_slice = log.read(0, 1, 1)
    doomed = directories.delete_log(ORDERS, TOPIC_ID)
    assert doomed == "/data/orders-0.00112233445566778899aabbccddeeff-delete"
    assert disk.is_directory(doomed) and not disk.exists("/data/orders-0")
    assert log_slice is not None and log_slice.file.read(0, log_slice.size_bytes) == batch.data
    # A new topic of the same name starts from nothing.
    assert directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS).log_end_offset == 0
    directories = open_directories(disk.kill())
    open_all(directories)
    assert list(directories.logs) == [ORDERS]
    assert directories.doomed_folders() == [doomed]
    directories.remove_folder(doomed)
    assert directories.doomed_folders() == []


def test_thousands_of_logs_are_deleted_without_waiting_for_the_disk(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = open_directories(disk, "/data/a", "/data/b")
    places = [TopicPartition("orders", index) for index in range(10)]
    for place in places:
        append(directories.open_log(place, LogConfig(), now_ms=NOW_MS), [NOW_MS])
    directories.forget_logs(places)
    synced: list[str] = []
    sync_directory = disk.sync_directory

    def note(path: str) -> None:
        synced.append(path)
        sync_directory(path)

    monkeypatch.setattr(disk, "sync_directory", note)
    for place in places:
        directories.delete_log(place, TOPIC_ID)
    assert synced == []
    # The next log that begins waits, once for all of them.
    directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    assert [path for path in synced if path in ("/data/a", "/data/b")] == ["/data/a", "/data/b"]


@pytest.mark.parametrize("seed", range(40))
def test_a_deleted_log_does_not_come_back_under_the_name_of_a_new_one(seed: int) -> None:
    """Whatever a power cut takes back: not in another directory, not with its records, not in parts."""
    disk = SimulatedDisk(seed)
    directories = open_directories(disk, "/data/a", "/data/b")
    old = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    append(old, [NOW_MS] * 5)
    old.flush()
    directories.forget_logs([ORDERS])
    doomed = directories.delete_log(ORDERS, TOPIC_ID)
    other = next(each for each in directories.directories if not doomed.startswith(each.path + "/"))
    directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS, directory_id=other.directory_id)
    if seed % 2:
        directories.remove_folder(doomed)
    directories = open_directories(disk.crash(), "/data/a", "/data/b")
    open_all(directories)
    assert all(log.log_end_offset == 0 for log in directories.logs.values())


@pytest.mark.parametrize("seed", range(40))
def test_a_deleted_log_is_whole_or_gone_after_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(seed)
    directories = open_directories(disk)
    old = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS, topic_id=TOPIC_ID)
    append(old, [NOW_MS] * 5)
    old.flush()
    directories.forget_logs([ORDERS])
    directories.remove_folder(directories.delete_log(ORDERS, TOPIC_ID))
    directories = open_directories(disk.crash())
    open_all(directories)
    assert ORDERS not in directories.logs


def test_checkpoints_of_a_deleted_log_do_not_speak_of_the_next_one_of_its_name(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    other = TopicPartition("other", 0)
    for place in (ORDERS, other):
        log = directories.open_log(place, LogConfig(), now_ms=NOW_MS)
        append(log, [NOW_MS] * 5)
        log.flush()
        log.advance_log_start(3)
    directories.checkpoint_plan({ORDERS: 5, other: 5}).run()
    directories.delete_log(ORDERS, TOPIC_ID)
    append(directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS), [NOW_MS])
    directories = open_directories(disk.kill())
    open_all(directories)
    assert directories.logs[ORDERS].log_start_offset == 0
    assert directories.high_watermark(ORDERS) == 0
    assert directories.logs[other].log_start_offset == 3
    assert directories.high_watermark(other) == 5


def test_a_log_that_is_to_go_is_forgotten_by_the_checkpoints_first(disk: SimulatedDisk) -> None:
    """Whenever a kill comes, no note is left without its folder, and other notes stay."""
    directories = open_directories(disk)
    other = TopicPartition("other", 0)
    for place in (ORDERS, other):
        log = directories.open_log(place, LogConfig(), now_ms=NOW_MS)
        append(log, [NOW_MS] * 5)
        log.flush()
    directories.checkpoint_plan({ORDERS: 5, other: 5}).run()
    directory_id = directories.directories[0].directory_id
    older_plan = directories.checkpoint_plan({ORDERS: 5, other: 5})
    directories.forget_logs([ORDERS])
    older_plan.run()
    directories.checkpoint_plan({ORDERS: 5, other: 5}).run()
    disk = disk.kill()
    directories = open_directories(disk)
    assert disk.is_directory("/data/orders-0")
    assert not directories.is_noted(ORDERS, directory_id)
    assert directories.is_noted(other, directory_id)
    directories.forget_logs([ORDERS])
    open_all(directories)
    directories.delete_log(ORDERS, TOPIC_ID)
    # The next log of the name is noted like any other.
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    append(log, [NOW_MS] * 2)
    log.flush()
    directories.checkpoint_plan({ORDERS: 2, other: 5}).run()
    directories = open_directories(disk.kill())
    assert directories.is_noted(ORDERS, directory_id) and directories.is_noted(other, directory_id)


def test_the_folder_of_a_deleted_log_with_a_long_name_still_fits(tmp_path: Path) -> None:
    directories = open_directories(OsDisk(), str(tmp_path / "data"))
    partition = TopicPartition("t" * 249, 12)
    directories.open_log(partition, LogConfig(), now_ms=NOW_MS)
    doomed = Path(directories.delete_log(partition, TOPIC_ID))
    assert doomed.is_dir() and len(doomed.name) == 255
    directories.close()


def test_a_damaged_checkpoint_costs_time_not_data(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    append(log, [NOW_MS] * 3)
    directories.close()
    overwrite(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\norders 0 9")
    directories = open_directories(disk)
    open_all(directories)
    assert directories.logs[ORDERS].log_end_offset == 3


def test_data_directories_are_there_after_a_power_cut() -> None:
    disk = SimulatedDisk(seed=9)
    directories = open_directories(disk, "/new/deep/data")
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    append(log, [NOW_MS])
    log.flush()
    directories.checkpoint_plan({ORDERS: 1}).run()
    directories = open_directories(disk.crash(), "/new/deep/data")
    open_all(directories)
    assert directories.logs[ORDERS].log_end_offset == 1
    assert directories.high_watermark(ORDERS) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-c-12", ("a-b-c", 12)),
        ("orders-00", None),
        ("orders-", None),
        ("-0", None),
        ("orders-0.0011-delete", None),
        ("or ders-0", None),
        ("orders-١", None),
    ],
)
def test_folder_names(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_folder_name(name) == expected


def test_damage_in_flushed_batches_comes_with_advice(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    append(log, [NOW_MS])
    log.roll(NOW_MS)
    append(log, [NOW_MS])
    directories.close()
    path = f"/data/orders-0/{0:020d}.log"
    overwrite(disk, path, file_bytes(disk, path)[:-1])
    disk.remove(f"/data/orders-0/{0:020d}.index")
    directories = open_directories(disk)
    with pytest.raises(LogDirectoryUnusable, match=rf"{path}: no whole batch at position 0.*truncate -s"):
        open_all(directories)


def test_a_recovery_point_that_was_lost_is_taken_back_at_once(disk: SimulatedDisk) -> None:
    directories = open_directories(disk)
    log = directories.open_log(ORDERS, LogConfig(), now_ms=NOW_MS)
    for _ in range(3):
        append(log, [NOW_MS])
    directories.close()
    path = f"/data/orders-0/{0:020d}.log"
    overwrite(disk, path, file_bytes(disk, path)[:-1])
    open_all(open_directories(disk))
    assert file_bytes(disk, "/data/recovery-point-offset-checkpoint") == b"0\n1\norders 0 2\n"


@pytest.mark.parametrize("size", range(12))
def test_a_torn_note_of_the_topic_counts_as_none(disk: SimulatedDisk, size: int) -> None:
    disk.make_directory("/data/orders-0")
    overwrite(disk, "/data/orders-0/partition.metadata", b"version: 0\ntopic_id: x\n"[:size])
    assert read_topic_id(disk, "/data/orders-0") is None

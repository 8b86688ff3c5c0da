"""Replicas that know that they lack records they had, among brokers without sockets: none leads cleanly."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest

from tests.support.in_memory_cluster import InMemoryCluster, Node
from tests.support.simulated_disk import SimulatedDisk, SimulatedFile
from tests.unit.broker.test_broker_directories import (
    PARTITIONS,
    cluster_with_records,
    directory_ids,
    in_sync,
    kill_all,
    path_of,
    produce,
    start,
)
from tidelog.controller.commands import (
    CreateTopics,
    DeleteTopics,
    ElectionType,
    ElectLeaders,
    TopicReference,
    TopicSpec,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import LOST_DIRECTORY, NO_LEADER, TopicPartition
from tidelog.storage.boot_id import BOOT_ID, FAILED_DIRECTORIES
from tidelog.storage.checkpoints import REPLICATION_OFFSET_CHECKPOINT, read_offsets
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import CLEAN_SHUTDOWN

T0 = TopicPartition("t", 0)
#: as long as it takes until the checkpoints speak of everything
NOTED_MS = 6_000


def shorten(disk: SimulatedDisk, path: str) -> None:
    """Take the second half of a log, as a disk that is damaged or a person may."""
    file = disk.open(f"{path}/t-0/00000000000000000000.log", create=False)
    file.truncate(file.size_bytes // 2 + 3)
    file.close()


def noted(cluster: InMemoryCluster, node_id: int) -> int:
    """The high watermark of partition 0 that is on the disk."""
    path = f"{path_of(cluster, node_id, 0)}/{REPLICATION_OFFSET_CHECKPOINT}"
    return read_offsets(cluster.nodes[node_id].disk, path)[T0]


def checkpoint(node: Node) -> None:
    node.broker.log_directories.checkpoint_plan(node.broker.replicas.high_watermarks()).run()


def everybody_has_everything(cluster: InMemoryCluster, *, count: int = 10) -> bool:
    replicas = [cluster.broker(node_id).replicas.replica("t", 0) for node_id in cluster.nodes]
    ends = [None if replica is None else replica.log.log_end_offset for replica in replicas]
    return in_sync(cluster, 0) and ends == [count] * len(replicas)


def test_a_log_that_is_shorter_than_its_watermark_waits_for_a_better_one() -> None:
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    kill_all(cluster)
    start(cluster, 1, before=lambda disk: shorten(disk, path))
    assert cluster.replica(1, "t").log.log_end_offset < 10
    state = cluster.state("t")
    assert (state.leader, state.elr, state.last_known_elr) == (NO_LEADER, (2, 3), (1,))
    # Of its other logs nothing is in doubt.
    assert all(cluster.state("t", index).leader == 1 for index in range(1, PARTITIONS))
    # The cluster knows: a restart raises no doubt that is not in the record.
    assert read_offsets(cluster.nodes[1].disk, f"{path}/{REPLICATION_OFFSET_CHECKPOINT}")[T0] < 10
    start(cluster, 1)
    assert cluster.state("t").leader == NO_LEADER
    start(cluster, 2)
    assert cluster.state("t").leader == 2
    start(cluster, 3)
    cluster.run_until(lambda: everybody_has_everything(cluster))
    assert cluster.state("t").unclean_leader_epoch < 0
    assert not any(cluster.broker(node_id).replicas.doubts for node_id in cluster.nodes)


@pytest.mark.parametrize("clean", [False, True])
def test_the_doubt_stays_until_the_cluster_knows(clean: bool) -> None:
    """Before it is registered the broker ends again: its checkpoints still tell what was lost."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    kill_all(cluster)
    node = cluster.restart(1, before=lambda disk: shorten(disk, path))
    checkpoint(node)
    assert not node.registered
    if clean:
        node.broker.close()
        node.dead = True
    else:
        cluster.kill(1)
    start(cluster, 1)
    assert cluster.state("t").last_known_elr == (1,)
    for node_id in (2, 3):
        start(cluster, node_id)
    cluster.run_until(lambda: everybody_has_everything(cluster))


def test_the_longest_log_leads_if_all_are_shorter_than_they_were() -> None:
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    paths = {node_id: path_of(cluster, node_id, 0) for node_id in cluster.nodes}
    kill_all(cluster)
    for node_id in cluster.nodes:
        start(cluster, node_id, before=lambda disk, path=paths[node_id]: shorten(disk, path))
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert cluster.state("t").unclean_leader_epoch >= 0
    assert produce(cluster, b"more").error is ErrorCode.NONE


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_folder_that_is_gone_from_a_directory_that_is_there(noted: bool, restarts: int) -> None:
    """The replica is not begun anew in silence: the others have the records."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS if noted else 0)
    path = path_of(cluster, 1, 0)
    kill_all(cluster)
    node = cluster.restart(1, before=lambda disk: disk.remove_tree(f"{path}/t-0"))
    for _ in range(restarts):
        checkpoint(node)
        assert not node.registered
        cluster.kill(1)
        node = cluster.restart(1)
    cluster.run_until(lambda: node.registered)
    cluster.run_for(3_000)
    state = cluster.state("t")
    assert (state.leader, state.elr) == (NO_LEADER, (2, 3))
    assert state.last_known_elr == (() if noted else (1,))
    for node_id in (2, 3):
        start(cluster, node_id)
    cluster.run_until(lambda: everybody_has_everything(cluster))
    assert cluster.state("t").unclean_leader_epoch < 0


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_one_replica_that_has_everything_is_enough(seed: int) -> None:
    """All are killed. Two lose a folder or half of a log; they start and end at any time, in any order."""
    random = Random(seed)
    cluster = InMemoryCluster(log_dirs="/x,/y", seed=seed)
    cluster.create_topic("t", min_insync_replicas="2")
    for value in range(10):
        assert produce(cluster, b"%d" % value).error is ErrorCode.NONE
    cluster.run_until(lambda: in_sync(cluster, 0))
    noted = random.random() < 0.5
    cluster.run_for(NOTED_MS if noted else 0)
    paths = {node_id: path_of(cluster, node_id, 0) for node_id in cluster.nodes}
    kill_all(cluster)
    whole = random.choice(list(paths))

    def lose(disk: SimulatedDisk, node_id: int) -> None:
        if node_id != whole and noted and random.random() < 0.5:
            shorten(disk, paths[node_id])
        elif node_id != whole:
            disk.remove_tree(f"{paths[node_id]}/t-0")

    for node_id in random.sample(list(paths), 3):
        cluster.restart(node_id, before=lambda disk, lost=node_id: lose(disk, lost))  # type: ignore[misc]
        for _ in range(random.randint(0, 3)):
            cluster.run_for(random.choice((0, 1, 5, 20, 200)))
            victim = random.choice([each for each in paths if not cluster.nodes[each].dead])
            checkpoint(cluster.nodes[victim])
            cluster.kill(victim)
            cluster.restart(victim)
    cluster.run_until(lambda: everybody_has_everything(cluster))


def test_a_broker_that_comes_back_without_a_folder_to_a_leader_copies_it() -> None:
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    cluster.kill(1)
    start(cluster, 1, before=lambda disk: disk.remove_tree(f"{path}/t-0"))
    cluster.run_until(lambda: everybody_has_everything(cluster))
    assert cluster.state("t").directory_of(1) in directory_ids(cluster, 1).values()


def test_a_topic_that_nobody_had_begun_when_all_were_killed_gets_a_leader() -> None:
    """Nothing tells them from folders that are gone, but nobody waits for ever."""
    cluster = cluster_with_records()
    paths = {node_id: path_of(cluster, node_id, 0) for node_id in cluster.nodes}
    kill_all(cluster)
    for node_id in cluster.nodes:
        start(cluster, node_id, before=lambda disk, path=paths[node_id]: disk.remove_tree(f"{path}/t-0"))
    cluster.run_until(lambda: everybody_has_everything(cluster, count=0))


@pytest.mark.parametrize("saw_the_deletion", [True, False])
def test_notes_of_a_deleted_topic_do_not_speak_of_the_next_one_of_its_name(saw_the_deletion: bool) -> None:
    """A broker is killed before it begins the new log: nothing was there, so nothing is lost. The others have
    lost their power, so it is the only one that certainly had everything."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    victim = next(node for node in cluster.living if node is not cluster.controller)
    controller = cluster.controller
    assert controller is not None and noted(cluster, victim.node_id) == 10
    if not saw_the_deletion:
        cluster.freeze(victim.node_id)
    controller.broker.metadata.submit(DeleteTopics((TopicReference(name="t"),)), lambda _: None)
    cluster.run_until(lambda: "t" not in controller.broker.image.topics)
    if saw_the_deletion:
        cluster.run_until(lambda: "t" not in victim.broker.image.topics)
        cluster.freeze(victim.node_id)
    spec = TopicSpec("t", PARTITIONS, 3, configs={"min.insync.replicas": "2"})
    controller.broker.metadata.submit(CreateTopics((spec,)), lambda _: None)
    cluster.run_until(lambda: "t" in controller.broker.image.topics)
    assert victim.node_id in cluster.state("t").isr
    kill_all(cluster)
    if not saw_the_deletion:
        # It sets the old folders aside, and is killed again before it is registered.
        assert not cluster.restart(victim.node_id).registered
        cluster.kill(victim.node_id)
    for node_id in cluster.nodes:
        if node_id != victim.node_id:
            start(cluster, node_id, power_cut=True)
    assert all(cluster.state("t", index).elr == (victim.node_id,) for index in range(PARTITIONS))
    start(cluster, victim.node_id)
    cluster.run_until(lambda: all(in_sync(cluster, index) for index in range(PARTITIONS)))
    assert all(LOST_DIRECTORY not in cluster.state("t", index).directories for index in range(PARTITIONS))


def test_the_only_replica_waits_for_its_folder_or_for_an_unclean_election() -> None:
    cluster = InMemoryCluster((1,))
    cluster.create_topic("t", replication_factor=1)
    assert produce(cluster, b"only").error is ErrorCode.NONE
    cluster.run_for(70_000)
    cluster.kill(1)
    start(cluster, 1, before=lambda disk: disk.rename("/data/t-0", "/data/away"))
    state = cluster.state("t")
    assert (state.leader, state.elr, state.directories) == (NO_LEADER, (1,), (LOST_DIRECTORY,))
    assert cluster.broker(1).replicas.absence("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (T0,))
    cluster.controller.broker.metadata.submit(command, lambda _: None)
    cluster.run_until(lambda: cluster.leader("t") is not None)
    assert cluster.replica(1, "t").log.log_end_offset == 0
    assert produce(cluster, b"again").error is ErrorCode.NONE


def test_a_doubt_that_the_registration_came_too_early_for_is_told_after_it() -> None:
    """A log cannot be opened at the start; when it can, it is found to be short, and the broker leads it."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    kill_all(cluster)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with pytest.MonkeyPatch.context() as patch:
        open_log = LogDirectories.open_log
        patch.setattr(
            LogDirectories,
            "open_log",
            lambda self, place, *rest, **options: (fail if place == T0 else partial(open_log, self))(
                place, *rest, **options
            ),
        )
        start(cluster, 1, before=lambda disk: shorten(disk, path))
    assert cluster.state("t").leader == 1
    cluster.broker(1).replication._open_unopened()
    assert cluster.leader("t") is None, "it does not lead before the cluster knows"
    cluster.run_until(lambda: cluster.state("t").last_known_elr == (1,))
    for node_id in (2, 3):
        start(cluster, node_id)
    cluster.run_until(lambda: everybody_has_everything(cluster))


@contextmanager
def failing_sync(node: Node, number: int) -> Iterator[None]:
    """A sync of the log fails once. As of Linux, what it could not write is forgotten: later ones succeed."""
    told = False
    sync = SimulatedFile.sync

    def fail(file: SimulatedFile) -> None:
        nonlocal told
        if file._disk is not node.disk or "/t-0/" not in file.path or not file.path.endswith(".log"):
            sync(file)
        elif not told:
            told = True
            raise OSError(number, "the device took nothing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFile, "sync", fail)
        yield
    assert told


def stop(cluster: InMemoryCluster, node_id: int) -> None:
    """A clean stop."""
    cluster.broker(node_id).close()
    cluster.nodes[node_id].dead = True
    cluster.run_for(1_000)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("log_dirs", ["/x", "/x,/y"])
def test_a_clean_stop_after_a_failed_sync_is_not_trusted(number: int, log_dirs: str) -> None:
    cluster = InMemoryCluster((1, 2), log_dirs=log_dirs)
    cluster.create_topic("t", replication_factor=2, min_insync_replicas="2")
    for value in range(10):
        assert produce(cluster, b"%d" % value).error is ErrorCode.NONE
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    with failing_sync(cluster.nodes[1], number):
        cluster.broker(1).flusher.request(cluster.replica(1, "t"))
        cluster.run_for(500)
        assert bool(cluster.nodes[1].fatal) == (number == errno.EIO and log_dirs == "/x")
        stop(cluster, 1)
    disk = cluster.nodes[1].disk
    assert not disk.exists(f"{path}/{CLEAN_SHUTDOWN}") and not disk.exists(f"{path}/{BOOT_ID}")
    for other in set(log_dirs.split(",")) - {path}:
        assert disk.exists(f"{other}/{CLEAN_SHUTDOWN}"), "nothing happened to the other disk"
    stop(cluster, 2)
    # Both machines are started again; broker 1 is the first to be back.
    start(cluster, 1, power_cut=True)
    cluster.run_for(3_000)
    assert cluster.state("t").leader == NO_LEADER
    start(cluster, 2, power_cut=True)
    cluster.run_until(lambda: everybody_has_everything(cluster))
    assert cluster.state("t").unclean_leader_epoch < 0


def test_who_has_failed_to_sync_hands_its_leadership_over() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", min_insync_replicas="2")
    assert produce(cluster, b"a").error is ErrorCode.NONE
    cluster.run_until(lambda: in_sync(cluster, 0))
    first = cluster.state("t").leader
    with failing_sync(cluster.nodes[first], errno.ENOSPC):
        cluster.broker(first).flusher.request(cluster.replica(first, "t"))
        cluster.run_until(lambda: cluster.state("t").leader not in (first, NO_LEADER))
    cluster.run_for(500)
    assert len(cluster.state("t").isr) == 2 and first not in cluster.state("t").isr
    assert produce(cluster, b"b").error is ErrorCode.NONE
    # It follows nobody, so it does not come and go.
    before = cluster.state("t").partition_epoch
    cluster.run_for(60_000)
    assert cluster.state("t").partition_epoch == before
    # A follower's failure is nobody's wait.
    second, third = cluster.state("t").isr
    follower = third if cluster.state("t").leader == second else second
    with failing_sync(cluster.nodes[follower], errno.ENOSPC):
        cluster.broker(follower).flusher.request(cluster.replica(follower, "t"))
        cluster.run_until(lambda: len(cluster.state("t").isr) == 1)
    # The last one leads on, since nobody else could.
    last = cluster.state("t").leader
    with failing_sync(cluster.nodes[last], errno.ENOSPC):
        cluster.broker(last).flusher.request(cluster.replica(last, "t"))
        cluster.run_for(1_000)
    assert cluster.state("t").leader == last
    # Whoever is started again takes over.
    start(cluster, first)
    cluster.run_until(lambda: cluster.state("t").leader == first)
    for node_id in (follower, last):
        start(cluster, node_id)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert produce(cluster, b"c").error is ErrorCode.NONE


def test_a_directory_in_doubt_stays_so_when_the_broker_is_registered() -> None:
    """A sync fails between the start and the registration, after which the boot is noted."""
    cluster = InMemoryCluster((1,))
    cluster.create_topic("t", replication_factor=1)
    assert produce(cluster, b"a").error is ErrorCode.NONE
    cluster.kill(1)
    node = cluster.restart(1)
    node.broker.log_directories.sync_failed(T0)
    cluster.run_until(lambda: node.registered)
    assert not node.disk.exists(f"/data/{BOOT_ID}")


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_directory_that_failed_is_in_doubt_at_the_next_start(number: int) -> None:
    """The disk takes no change, so its boot id stays; it is unmounted, loses what it had not written, and is
    mounted again. Nothing of this is a restart of the machine."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    path = path_of(cluster, 1, 0)
    other = "/x" if path == "/y" else "/y"
    node = cluster.nodes[1]
    node.disk.fail_directory(path, number)
    cluster.broker(1).directory_failures.failed(
        cluster.broker(1).log_directories.directory_of(T0), "the disk is broken"
    )
    cluster.run_for(1_000)
    kill_all(cluster)

    def lose_the_end(disk: SimulatedDisk) -> None:
        assert disk.exists(f"{path}/{BOOT_ID}") and disk.exists(f"{other}/{FAILED_DIRECTORIES}")
        shorten(disk, path)
        disk.remove(f"{path}/{REPLICATION_OFFSET_CHECKPOINT}")

    node = start(cluster, 1, before=lose_the_end)
    assert not node.broker.log_directories.kept_their_ends
    assert cluster.state("t").leader == NO_LEADER
    assert not node.disk.exists(f"{other}/{FAILED_DIRECTORIES}"), "the cluster knows"
    for node_id in (2, 3):
        start(cluster, node_id)
    cluster.run_until(lambda: everybody_has_everything(cluster))
    node = start(cluster, 1)
    assert node.broker.log_directories.kept_their_ends


def test_a_directory_that_failed_is_in_doubt_whenever_it_comes_back() -> None:
    cluster = cluster_with_records()
    path = path_of(cluster, 1, 0)
    other = "/x" if path == "/y" else "/y"
    broker = cluster.broker(1)
    broker.directory_failures.failed(broker.log_directories.directory_of(T0), "the disk is broken")
    cluster.run_for(1_000)
    assert not cluster.nodes[1].disk.exists(f"{path}/{BOOT_ID}")
    for _ in range(2):
        node = start(cluster, 1, log_dirs=other)
        assert node.broker.log_directories.kept_their_ends
        assert node.disk.exists(f"{other}/{FAILED_DIRECTORIES}")
    node = start(cluster, 1, log_dirs="/x,/y")
    assert not node.broker.log_directories.kept_their_ends
    assert not node.disk.exists(f"{other}/{FAILED_DIRECTORIES}")
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "high watermarks"])
@pytest.mark.parametrize("under_way", [True, False], ids=["one is under way", "none is"])
def test_a_watermark_that_went_down_and_up_between_two_notes_is_noted(
    everything: bool, under_way: bool
) -> None:
    """It is where the last note has it, but what was written since, before a cut, is lower."""
    cluster = cluster_with_records()
    cluster.run_for(NOTED_MS)
    checkpoints, replica = cluster.broker(2).checkpoints, cluster.replica(2, "t")
    committed = replica.high_watermark
    assert noted(cluster, 2) == committed > 0
    if under_way:
        checkpoints.write_high_watermarks_now()
        checkpoints._note_high_watermarks()
    replica.high_watermark = 0
    (checkpoints.write_now if everything else checkpoints.write_high_watermarks_now)()
    replica.high_watermark = committed
    assert noted(cluster, 2) == 0
    cluster.run_for(NOTED_MS)
    assert noted(cluster, 2) == committed

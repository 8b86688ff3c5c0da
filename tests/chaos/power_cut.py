"""A power cut of all machines of a cluster whose brokers were killed: what was not synced is gone.

    boots = Boots(folder / "boot-id")           # RunningCluster(…, environment=boots.environment)
    cluster.kill()
    kept = cut_power(cluster, boots, random)    # then start the brokers in any order

A log keeps everything below its recovery point, which the broker has synced and written down, and any part of
what follows, torn in the middle of a batch by chance. Of every partition one broker of those that had
everything (the members of ISR and ELR in the store) keeps all of it: with such a *keeper* nothing committed
may be lost. Topics with `flush.messages` or `flush.ms` are left alone: they were promised more.
"""

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from tests.chaos.broker_directories import log_dirs, replica_folder
from tidelog.broker.metadata.change_log import read_snapshot
from tidelog.coordination.opening import open_store
from tidelog.model.image import ClusterImage
from tidelog.model.settings import BrokerSettings
from tidelog.server import local_cluster
from tidelog.storage.checkpoints import RECOVERY_POINT_CHECKPOINT
from tidelog.storage.disk import BOOT_ID_FILE_VARIABLE
from tidelog.testing.cluster import RunningCluster

HEADER = struct.Struct(">qii")
"""Base offset, batch length, leader epoch."""
OVERHEAD_BYTES = 12
LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_AT = 23
SIDE_FILES = (".index", ".timeindex", ".txnindex")
FLUSH_SETTINGS = ("flush.messages", "flush.ms")

Place = tuple[str, int]


class Boots:
    """The id that brokers take for their machine's boot; a new one stands for a restarted machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next()

    @property
    def environment(self) -> dict[str, str]:
        return {BOOT_ID_FILE_VARIABLE: str(self.path)}

    def next(self) -> None:
        self.path.write_text(f"{uuid4()}\n")


class Batch(NamedTuple):
    """Where a batch is: its file, where it begins and ends there, the offset behind it."""

    file: Path
    begin: int
    end: int
    next_offset: int
    leader_epoch: int


def batches_of(folder: Path) -> list[Batch]:
    """The batches of a log, in order."""
    found = []
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + LAST_OFFSET_DELTA_AT + LAST_OFFSET_DELTA.size <= len(data):
            base_offset, length, leader_epoch = HEADER.unpack_from(data, position)
            end = position + OVERHEAD_BYTES + length
            if length <= 0 or end > len(data):
                break
            (delta,) = LAST_OFFSET_DELTA.unpack_from(data, position + LAST_OFFSET_DELTA_AT)
            found.append(Batch(segment, position, end, base_offset + delta + 1, leader_epoch))
            position = end
    return found


def recovery_points(data: Path) -> dict[Place, int]:
    """Up to where the logs of a broker are certainly on its disk."""
    found = {}
    for directory in log_dirs(data):
        path = directory / RECOVERY_POINT_CHECKPOINT
        for row in path.read_text().splitlines()[2:] if path.exists() else []:
            topic, partition, offset = row.split(" ")
            found[topic, int(partition)] = int(offset)
    return found


def cut_log(folder: Path, to_offset: int, *, torn_bytes: int = 0) -> None:
    """Take away every batch of a log that begins behind `to_offset`, but for the first bytes of the next."""
    batches = batches_of(folder)
    kept = [batch for batch in batches if batch.next_offset <= to_offset]
    following = batches[len(kept)] if len(kept) < len(batches) else None
    if following is None:
        return
    size = following.begin + min(torn_bytes, following.end - following.begin - 1)
    with following.file.open("r+b") as file:
        file.truncate(size)
    for segment in sorted(folder.glob("*.log")):
        if segment.name > following.file.name:
            for path in (segment, *(segment.with_suffix(suffix) for suffix in SIDE_FILES)):
                path.unlink(missing_ok=True)


def image_of(cluster: RunningCluster) -> ClusterImage:
    """What the store says while no broker runs."""
    settings = local_cluster.broker_settings(
        cluster.settings, data=cluster.data_directory, broker_id=1, listeners="PLAINTEXT://127.0.0.1:0"
    )
    store = open_store(BrokerSettings.resolve(settings))
    try:
        return ClusterImage().apply(read_snapshot(store).records)
    finally:
        store.close()


def cut_power(cluster: RunningCluster, boots: Boots, rand: random.Random) -> Mapping[str, int]:
    """All brokers are killed: drop what was not synced; returns how many batches went, and logs were cut."""
    image = image_of(cluster)
    counts = {"batches lost": 0, "logs cut": 0}
    flushed = {number: recovery_points(cluster.data_directory_of(number)) for number in cluster.broker_ids}
    for name, topic in image.topics.items():
        if any(setting in topic.configs for setting in FLUSH_SETTINGS):
            continue
        for index, partition in enumerate(topic.partitions):
            holders = (*partition.isr, *partition.elr)
            # Of the last known ELR anyone may have the longest log.
            keepers = {rand.choice(holders)} if holders else set(partition.last_known_elr)
            for broker_id in set(partition.replicas) - keepers:
                folder = replica_folder(cluster.data_directory_of(broker_id), f"{name}-{index}")
                if not folder.is_dir():
                    continue
                floor = flushed[broker_id].get((name, index), 0)
                ends = [batch.next_offset for batch in batches_of(folder)]
                unsynced = [end for end in ends if end > floor]
                chosen = rand.choice([max(floor, 0), *unsynced])
                cut_log(folder, chosen, torn_bytes=rand.choice((0, 0, 7, 40, 200)))
                lost = sum(end > chosen for end in ends)
                counts["batches lost"] += lost
                counts["logs cut"] += bool(lost)
    boots.next()
    return counts

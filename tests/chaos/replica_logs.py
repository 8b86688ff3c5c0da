"""The replicas of a partition, compared on disk: batch by batch, without the broker's code.

    differences(folders, "orders", 0)       # words; empty when the replicas tell the same story

`folders` are the data folders of the brokers. Replicas may end at different offsets (a follower may lack the
last batches) and begin at different ones; where both have a batch it must be the same, byte for byte.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.chaos.broker_directories import replica_folder

HEADER = struct.Struct(">qii")
"""Base offset, batch length, leader epoch."""
OVERHEAD_BYTES = 12


class StoredBatch(NamedTuple):
    """One batch as it is in the file."""

    base_offset: int
    leader_epoch: int
    checksum: int
    """Of every byte of the batch, leader epoch and base offset included."""


def stored_batches(folder: Path) -> Iterator[StoredBatch]:
    """Every batch of a partition folder, in the order of its segments."""
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + HEADER.size <= len(data):
            base_offset, length, leader_epoch = HEADER.unpack_from(data, position)
            end = position + OVERHEAD_BYTES + length
            if length <= 0 or end > len(data):
                break
            yield StoredBatch(base_offset, leader_epoch, zlib.crc32(data[position:end]))
            position = end


def differences(folders: Mapping[int, Path], topic: str, partition: int) -> list[str]:
    """Where two replicas do not agree."""
    replicas = {
        broker_id: {batch.base_offset: batch for batch in stored_batches(replica)}
        for broker_id, folder in folders.items()
        if (replica := replica_folder(folder, f"{topic}-{partition}")).is_dir()
    }
    found: list[str] = []
    if not replicas:
        return [f"{topic}-{partition}: there is no replica"]
    longest = max(replicas, key=lambda broker_id: max(replicas[broker_id], default=-1))
    for broker_id, batches in replicas.items():
        if broker_id == longest or not batches:
            continue
        last = max(batches)
        first = max(min(batches), min(replicas[longest]))
        expected = {o: batch for o, batch in replicas[longest].items() if first <= o <= last}
        present = {o: batch for o, batch in batches.items() if o >= first}
        if present != expected:
            odd = sorted(o for o in expected.keys() | present if expected.get(o) != present.get(o))
            found.append(
                f"{topic}-{partition}: brokers {longest} and {broker_id} differ at {odd[:5]} "
                f"({len(odd)} batches): {expected.get(odd[0])} and {present.get(odd[0])}"
            )
    return found


def end_offset_of(folder: Path) -> int:
    """The base offset of the last batch, -1 if there is none."""
    return max((batch.base_offset for batch in stored_batches(folder)), default=-1)

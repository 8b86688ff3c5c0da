"""The file `partition.metadata` of a partition's folder: which topic the folder belongs to, whatever its
name.

Kafka's format, two lines of text; the topic id is its 16 bytes in URL-safe base64 without padding:

    version: 0
    topic_id: Ly8vLy8vLy8vLy8vLy8vLw
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

from tidelog.storage.disk import Disk

PARTITION_METADATA = "partition.metadata"


class PartitionMetadataMalformed(Exception):
    """A `partition.metadata` file cannot be read; says which and why."""


def encode_topic_id(topic_id: UUID) -> str:
    """A topic id as Kafka writes it for people and in files."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> UUID:
    """Read a topic id; raises `ValueError` when it is none."""
    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def write_topic_id(disk: Disk, directory: str, topic_id: UUID) -> None:
    """Note the topic id of a partition's folder.

    Not synced, because a topic may have thousands of partitions. It becomes durable with the first flush of
    the log; a note that a power cut took or tore before that is written again, if the log is still wanted.
    """
    content = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n"
    file = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
    try:
        file.truncate(0)
        file.append(content.encode())
    finally:
        file.close()


def read_topic_id(disk: Disk, directory: str) -> UUID | None:
    """The topic id of a partition's folder; None if none was noted, or if a power cut tore the note."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        file = disk.open(path, create=False)
    except FileNotFoundError:
        return None
    try:
        content = file.read(0, min(file.size_bytes, 1024))
    finally:
        file.close()
    if content.count(b"\n") < 2 or not content.endswith(b"\n") or b"\0" in content:
        return None
    try:
        lines = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        if lines["version"] != "0":
            raise ValueError(f"version {lines['version']} is not known")
        return decode_topic_id(lines["topic_id"])
    except (ValueError, KeyError) as error:
        raise PartitionMetadataMalformed(f"{path}: {error}") from error

"""Whether the end of the logs in a data directory can be trusted at a start.

What a broker has appended and not synced is with the operating system. It survives the end of the process,
not the end of the machine. So a data directory notes on which boot of the machine its logs were written:

    boot-id     the system's id of the boot, one line

The logs have kept their ends if the broker was stopped cleanly, or if the machine has not been started since
(the same boot id). In all other cases, and on systems that give no such id, they may have lost records that
others rely on. The note of a new boot is written only when the cluster knows of the doubt: a broker that is
killed before that must raise it again.

An id says nothing of storage that loses writes while the machine runs. A failed sync therefore removes it,
and so does the failure of the whole disk. That disk may take no change any more, so the other directories of
the broker note the failure, too, until the cluster knows of the doubt:

    failed-directories     the ids of directories that failed while they were in use, one per line
"""

from collections.abc import Collection

from tidelog.storage.disk import Disk

BOOT_ID = "boot-id"
FAILED_DIRECTORIES = "failed-directories"
_BYTES_MAX = 256
_FAILED_BYTES_MAX = 1 << 16


def read_boot_id(disk: Disk, directory: str) -> str:
    """The boot on which the logs of a directory were written; empty if that is not known."""
    return _read(disk, f"{directory}/{BOOT_ID}", _BYTES_MAX).strip()


def _read(disk: Disk, path: str, bytes_max: int) -> str:
    try:
        file = disk.open(path, create=False)
    except FileNotFoundError:
        return ""
    try:
        return file.read(0, min(file.size_bytes, bytes_max)).decode(errors="replace")
    finally:
        file.close()


def kept_its_end(disk: Disk, directory: str) -> bool:
    """Whether the machine has been running ever since the logs of a directory were written."""
    boot_id = disk.boot_id()
    return bool(boot_id) and read_boot_id(disk, directory) == boot_id


def note_boot_id(disk: Disk, directory: str) -> None:
    """From now on the logs of a directory are written on this boot."""
    boot_id = disk.boot_id()
    if boot_id and read_boot_id(disk, directory) != boot_id:
        disk.replace_atomically(f"{directory}/{BOOT_ID}", boot_id.encode() + b"\n")


def forget_boot_id(disk: Disk, directory: str) -> None:
    """The logs of a directory may have lost their ends on this boot."""
    path = f"{directory}/{BOOT_ID}"
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def read_failed(disk: Disk, directory: str) -> frozenset[str]:
    """The ids of directories of which this one notes that they failed."""
    return frozenset(_read(disk, f"{directory}/{FAILED_DIRECTORIES}", _FAILED_BYTES_MAX).split())


def note_failed(disk: Disk, directory: str, failed: Collection[str]) -> None:
    """From now on these are the directories that failed; none needs no note."""
    path = f"{directory}/{FAILED_DIRECTORIES}"
    if failed:
        disk.replace_atomically(path, "".join(f"{each}\n" for each in sorted(failed)).encode())
    elif disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)

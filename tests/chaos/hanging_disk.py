"""A disk that can be made to hang, by the kernel's own means: two file systems in files, one in the other.

    with HangingDisk(folder) as disk:
        disk.path                 # a folder on it
        disk.hang_writes()        # whoever writes waits (the inner file system is frozen)
        disk.hang_device()        # writes go to memory, but nothing reaches the device: syncs wait
        disk.release()

Needs root, loop devices and mkfs.ext4: `HangingDisk` raises `NoDisk` where it cannot be made. A process that
waits for such a disk cannot be killed; leaving releases it first.
"""

import subprocess
from pathlib import Path
from types import TracebackType

SIZE_BYTES = 64 << 20
#: what the outer file system needs for itself
OUTER_BYTES = 32 << 20
STEP_SECONDS_MAX = 20.0


class NoDisk(OSError):
    """No such disk can be made here."""


class HangingDisk:
    """A file system of its own, mounted at `path`; what it is made of is in `folder`."""

    def __init__(self, folder: Path, path: Path | None = None, size_bytes: int = SIZE_BYTES) -> None:
        self._outer = folder / "outer"
        self.path = path or folder / "inner"
        self._mounted: list[Path] = []
        self._frozen: list[Path] = []
        try:
            self._make(folder / "outer.img", OUTER_BYTES + size_bytes, self._outer)
            self._make(self._outer / "inner.img", size_bytes, self.path)
        except NoDisk:
            self.close()
            raise

    def _make(self, image: Path, size_bytes: int, mount_point: Path) -> None:
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(image))
        mount_point.mkdir(exist_ok=True)
        _run("mount", "-o", "loop", str(image), str(mount_point))
        self._mounted.append(mount_point)

    def hang_writes(self) -> None:
        """From now on whoever writes waits."""
        self._freeze(self.path)

    def hang_device(self) -> None:
        """From now on nothing reaches the device: whoever syncs waits, whoever writes soon does."""
        self._freeze(self._outer)

    def _freeze(self, mount_point: Path) -> None:
        _run("fsfreeze", "-f", str(mount_point))
        self._frozen.append(mount_point)

    def release(self) -> None:
        """Let it answer again."""
        while self._frozen:
            _run("fsfreeze", "-u", str(self._frozen.pop()))

    def close(self) -> None:
        self.release()
        while self._mounted:
            _run("umount", "-l", str(self._mounted.pop()))

    def __enter__(self) -> "HangingDisk":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=STEP_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as fault:
        told = getattr(fault, "stderr", None) or fault
        raise NoDisk(f"{' '.join(command)}: {str(told).strip()}") from fault

"""Tidelog and what it needs as one file, for Spark executors on which it is not installed.

    python -m tidelog.pipelines.executor_archive tidelog-executors.zip [--leave-out pyarrow,numpy]

The file is a zip of packages as they lie in `site-packages`, compiled ones included, so it fits machines with
the same Python version and platform as this one. Spark unpacks it beside each executor:

    spark.archives                  tidelog-executors.zip#tidelog_executors
    spark.executorEnv.PYTHONPATH    tidelog_executors

`spark_settings` gives these two. Executors need nothing but a Python then; a Python that has numpy or pyarrow
of its own can be spared them (`--leave-out`), which are most of the size. What is optional (pandas for the
functions of flows, psycopg for jdbc-*) is in the archive when it is installed here.

`tidelog pipeline run` makes the archive by itself when the master is not local (`kept_archive`), and again
only when something in it has changed.

The driver's JVM plans with Python workers of its own, and starts them with the executors' interpreter. Where
that is not the driver's, `driver_environment` lets them find the driver's packages.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from tidelog.pipelines.java import CannotRun

#: what reading and writing takes, and Arrow, which Spark itself moves rows with
DISTRIBUTIONS = ("kio", "typing-extensions", "fastcrc", "cramjam", "numpy", "pyarrow")
#: what comes along when it is installed: for functions that take pandas frames, and for PostgreSQL
OPTIONAL_DISTRIBUTIONS = (
    "pandas",
    "python-dateutil",
    "pytz",
    "six",
    "tzdata",
    "psycopg",
    "psycopg-binary",
)
PACKAGES = ("tidelog", "pyspark_tidelog")
FOLDER = "tidelog_executors"

_LEFT_OUT_PARTS = frozenset({"__pycache__", "tests", "include"})
_LEFT_OUT_SUFFIXES = frozenset({".pyc", ".pyx", ".pxd", ".h", ".a"})


_NAME = "tidelog-executors"
#: descriptors of the archives that this process serves, locked until it ends
_held: list[int] = []


class NotInstalled(CannotRun):
    """Something that belongs into the archive is not here."""


def build(target: Path, leave_out: Sequence[str] = ()) -> Path:
    """Write the archive; raises NotInstalled."""
    # Some installers date their files 1970, which a zip cannot say.
    with zipfile.ZipFile(
        target, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        for package in PACKAGES:
            for path, name in _files_of_package(package):
                archive.write(path, name)
        for distribution in _distributions(leave_out):
            for path, name in _files_of_distribution(distribution):
                archive.write(path, name)
    return target


def kept_archive(folder: Path, leave_out: Sequence[str] = ()) -> Path:
    """The archive of what is installed now, from an earlier run if it has not changed; raises NotInstalled.

    A driver gives it to executors as long as it runs. So it is held, by a shared lock, until this process
    ends; older ones that nobody holds are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{_NAME}-{_fingerprint(leave_out)}.zip"
    if not _hold(kept):
        waiting = kept.with_suffix(f".{os.getpid()}")
        try:
            build(waiting, leave_out)
            _hold(waiting)
            waiting.replace(kept)
        finally:
            waiting.unlink(missing_ok=True)
    for other in folder.glob(f"{_NAME}-*"):
        if other != kept:
            _remove_unheld(other)
    return kept


def _fingerprint(leave_out: Sequence[str]) -> str:
    """Of everything the archive depends on; of our own files the dates, as they may be installed editable."""
    told = [platform.python_version(), platform.machine(), sys.platform]
    told += [f"{name} {metadata.version(name)}" for name in _distributions(leave_out)]
    for package in PACKAGES:
        for path, name in _files_of_package(package):
            seen = path.stat()
            told.append(f"{name} {seen.st_size} {seen.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    return f"{metadata.version('tidelog')}-{digest}"


def _hold(archive: Path) -> bool:
    """Lock it for as long as this process lives; False when it is not there, or is being removed."""
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:
            raise BlockingIOError
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def _remove_unheld(archive: Path) -> None:
    with contextlib.suppress(FileNotFoundError, BlockingIOError), archive.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        archive.unlink()


def spark_settings(archive: Path) -> dict[str, str]:
    """What a session is configured with, so that its executors find the archive."""
    return {"spark.archives": f"{archive.resolve()}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def driver_environment(executor_python: str) -> dict[str, str]:
    """What is put into the driver's environment before its session starts."""
    folders = [folder for folder in sys.path if folder and Path(folder).is_dir()]
    return {"PYSPARK_PYTHON": executor_python, "PYTHONPATH": os.pathsep.join(folders)}


def _distributions(leave_out: Sequence[str]) -> list[str]:
    """Those that the archive holds; raises NotInstalled."""
    found = []
    for name in (*DISTRIBUTIONS, *OPTIONAL_DISTRIBUTIONS):
        if name in leave_out:
            continue
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            if name in DISTRIBUTIONS:
                raise NotInstalled(f"{name} is not installed here; pip install 'tidelog[spark]'") from None
        else:
            found.append(name)
    return found


def _files_of_package(package: str) -> Iterator[tuple[Path, str]]:
    """The modules of a package, from wherever it is imported: an editable install lists no files."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise NotInstalled(f"the package {package} cannot be imported here")
    root = Path(found.origin).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and _belongs(path.relative_to(root)):
            yield path, str(Path(package) / path.relative_to(root))


def _files_of_distribution(name: str) -> Iterator[tuple[Path, str]]:
    for file in metadata.files(name) or ():
        path = Path(str(file.locate()))
        # Scripts lie above site-packages.
        if ".." not in file.parts and path.is_file() and _belongs(Path(file)):
            yield path, str(file)


def _belongs(path: Path) -> bool:
    return not _LEFT_OUT_PARTS.intersection(path.parts) and path.suffix not in _LEFT_OUT_SUFFIXES


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the archive and say how Spark is told of it."""
    parser = argparse.ArgumentParser(
        prog="python -m tidelog.pipelines.executor_archive", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("target", type=Path)
    every = (*DISTRIBUTIONS, *OPTIONAL_DISTRIBUTIONS)
    parser.add_argument("--leave-out", default="", help="of " + ", ".join(every))
    parsed = parser.parse_args(arguments)
    left_out = [name.strip() for name in parsed.leave_out.split(",") if name.strip()]
    if unknown := [name for name in left_out if name not in every]:
        parser.error(f"{', '.join(unknown)} is not in the archive; it holds {', '.join(every)}")
    try:
        target = build(parsed.target, left_out)
    except NotInstalled as fault:
        print(fault, file=sys.stderr)
        return 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB, for Python {version} on {sys.platform}")
    for name, value in driver_environment(f"python{version}").items():
        print(f"  export {name}={value}")
    for name, value in spark_settings(target).items():
        print(f"  --conf {name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

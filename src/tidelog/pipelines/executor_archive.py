"""Tidelog and what it needs as one file, for Spark executors on which it is not installed.

    python -m tidelog.pipelines.executor_archive tidelog-executors.zip [--leave-out pyarrow,numpy]

The file is a zip of packages as they lie in `site-packages`, compiled ones included, so it fits machines with
the same Python version and platform as this one. Spark unpacks it beside each executor:

    spark.archives                  tidelog-executors.zip#tidelog_executors
    spark.executorEnv.PYTHONPATH    tidelog_executors

`spark_settings` gives these two. Executors need nothing but a Python then; a Python that has numpy or pyarrow
of its own can be spared them (`--leave-out`), which are nine tenths of the size.

The driver's JVM plans with Python workers of its own, and starts them with the executors' interpreter. Where
that is not the driver's, `driver_environment` lets them find the driver's packages.
"""

import argparse
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

#: what reading and writing takes, and Arrow, which Spark itself moves rows with
DISTRIBUTIONS = ("kio", "typing-extensions", "crc32c", "cramjam", "numpy", "pyarrow")
PACKAGES = ("tidelog", "pyspark_tidelog")
FOLDER = "tidelog_executors"

_LEFT_OUT_PARTS = frozenset({"__pycache__", "tests", "include"})
_LEFT_OUT_SUFFIXES = frozenset({".pyc", ".pyx", ".pxd", ".h", ".a"})


class NotInstalled(RuntimeError):
    """Something that belongs into the archive is not here."""


def build(target: Path, leave_out: Sequence[str] = ()) -> Path:
    """Write the archive; raises NotInstalled."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in PACKAGES:
            for path, name in _files_of_package(package):
                archive.write(path, name)
        for distribution in DISTRIBUTIONS:
            if distribution not in leave_out:
                for path, name in _files_of_distribution(distribution):
                    archive.write(path, name)
    return target


def spark_settings(archive: Path) -> dict[str, str]:
    """What a session is configured with, so that its executors find the archive."""
    return {"spark.archives": f"{archive.resolve()}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def driver_environment(executor_python: str) -> dict[str, str]:
    """What is put into the driver's environment before its session starts."""
    folders = [folder for folder in sys.path if folder and Path(folder).is_dir()]
    return {"PYSPARK_PYTHON": executor_python, "PYTHONPATH": os.pathsep.join(folders)}


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
    try:
        files = metadata.files(name)
    except metadata.PackageNotFoundError:
        raise NotInstalled(f"{name} is not installed here; pip install 'tidelog[spark]'") from None
    for file in files or ():
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
    parser.add_argument("--leave-out", default="", help="of " + ", ".join(DISTRIBUTIONS))
    parsed = parser.parse_args(arguments)
    left_out = [name.strip() for name in parsed.leave_out.split(",") if name.strip()]
    if unknown := [name for name in left_out if name not in DISTRIBUTIONS]:
        parser.error(f"{', '.join(unknown)} is not in the archive; it holds {', '.join(DISTRIBUTIONS)}")
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

"""The two log directories of each broker of a chaos run.

The first is the data folder of the broker, as `RunningCluster` names it; the second lies beside it. A replica
is in either of them.
"""

from pathlib import Path

from tidelog.testing.cluster import RunningCluster

META_PROPERTIES = "meta.properties"


def second_folder(data: Path) -> Path:
    """The second log directory of the broker with this data folder."""
    return data.with_name(f"{data.name}-second")


def log_dirs(data: Path) -> list[Path]:
    return [data, second_folder(data)]


def replica_folder(data: Path, name: str) -> Path:
    """Where a replica is; in the first directory if it is nowhere."""
    found = [directory / name for directory in log_dirs(data) if (directory / name).is_dir()]
    return found[0] if found else data / name


def directory_id(directory: Path) -> str:
    """The id in a directory's meta.properties."""
    lines = (directory / META_PROPERTIES).read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))


def set_log_dirs(cluster: RunningCluster, broker_id: int, directories: list[Path], *lost: str) -> None:
    """How the broker is started from now on: with these directories, in this order, and these given up."""
    settings = cluster._processes[broker_id].settings
    settings["log.dirs"] = ",".join(map(str, directories))
    settings["tidelog.lost.directories"] = ",".join(lost)

"""Whether the folders that a plan writes could be written. Nothing is made or changed.

Asked of pipelines that run on this machine (a master `local…`): what a path means elsewhere is known there.
A folder that is not there yet is made by the run, so the nearest one above it that is there is asked.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog.pipelines.plan import DEFINITION, Plan
from tidelog.pipelines.problems import Findings, Problem, Where
from tidelog.pipelines.ready import ready_pipeline
from tidelog.pipelines.spark_cluster import is_local

_MOUNTS = Path("/proc/self/mounts")
#: file systems in which the kernel shows what it knows; root passes their rights, and still makes no file
_SHOWN_BY_KERNEL = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "securityfs", "debugfs", "tracefs", "bpf", "pstore")
)


def check_folders(plan: Plan) -> Findings:
    """A problem for each folder of this machine that the plan would write and cannot."""
    if not is_local(plan.run.master):
        return Findings()
    found = []
    for where, path in _written(plan):
        local = _local_path(path)
        why = None if local is None else why_not_written(local)
        if why is not None:
            found.append(Problem(where, f"{path} cannot be written: {why}"))
    return Findings(tuple(found))


def _written(plan: Plan) -> list[tuple[Where, str]]:
    found: list[tuple[Where, str]] = [(("checkpoint",), plan.run.checkpoint)]
    if (definition := plan.more.get(DEFINITION)) is not None:
        found += [
            (("sinks", number, "path"), sink.path)
            for number, sink in enumerate(definition.sinks)
            if sink.path is not None
        ]
    else:
        names = [option.name for option in ready_pipeline(plan.kind).options if option.written_folder]
        found += [(("options", name), plan.options[name]) for name in names if plan.options[name] is not None]
    return found


def _local_path(path: str) -> Path | None:
    """The path on this machine, None where it is somewhere else."""
    if ":/" not in path:
        return Path(path).absolute()
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def why_not_written(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """Why no file can be made in a folder that is there, or could not be once it is; None if it can."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is not a folder"
    if _file_system(place, mounts) in _SHOWN_BY_KERNEL:
        return f"nobody can make files in {place}, which the kernel shows"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"the file system of {place} is read-only"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"this user may not write {place}"
    return None


def _file_system(place: Path, mounts: Path) -> str | None:
    """The type of the file system that a folder is on, None where nobody tells."""
    try:
        rows = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    real = place.resolve()
    types = {Path(row[1].replace("\\040", " ")): row[2] for row in rows if len(row) > 2}
    return next((types[one] for one in (real, *real.parents) if one in types), None)

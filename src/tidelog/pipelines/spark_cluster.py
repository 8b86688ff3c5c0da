"""What a pipeline needs when Spark's executors are on other machines than the driver.

With a master that is not `local…` a session ships Tidelog, with everything that it needs, to the executors
(`executor_archive`), names the Python that they run, and lets the planning workers of the driver, which Spark
starts with that same Python, find the driver's packages. Nothing needs to be installed on the executors but
Spark and a Python of the driver's version.

A setting of ours, `spark.tidelog.executors.installed: true`, says that they have Tidelog already, from an
image for example: then nothing is shipped.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tidelog.pipelines.executor_archive import driver_environment, kept_archive, spark_settings
from tidelog.pipelines.run_settings import RunSettings

INSTALLED = "spark.tidelog.executors.installed"
EXECUTOR_PYTHON = "spark.pyspark.python"
ARCHIVES_FOLDER = "executors"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_local(master: str) -> bool:
    """Whether executors are in the driver's process, or (`local-cluster`) children of it."""
    return master.startswith("local")


def cluster_notes(run: RunSettings, paths: Sequence[str] = ()) -> tuple[str, ...]:
    """What a person should know before a pipeline runs on several machines; `paths` are of its files."""
    if is_local(run.master):
        return ()
    doubtful = [f"the checkpoint {run.checkpoint}"] if _of_one_machine(run.checkpoint, run.master) else []
    doubtful += [f"the files in {path}" for path in paths if _of_one_machine(path, run.master)]
    if not doubtful:
        return ()
    return (
        f"warning: Spark runs on the machines of {run.master}, and each of them must reach "
        f"{' and '.join(doubtful)}. Unless that is a folder they share, name one that is: a network "
        "file system, hdfs://… or s3a://… (checkpoint: in the file, or --checkpoint)",
    )


def _of_one_machine(path: str, master: str) -> bool:
    """Whether a path is on the machine that looks, as far as its name says."""
    scheme = path.partition(":")[0] if ":/" in path else ""
    # On YARN a path without a scheme is one of the cluster's own file system.
    return scheme == "file" or (not scheme and not master.startswith("yarn"))


def prepare_cluster(
    run: RunSettings, settings: Mapping[str, str], environment: MutableMapping[str, str], state: Path
) -> dict[str, str]:
    """The settings of a session on a cluster, and its environment, changed in place; raises CannotRun."""
    made = dict(settings)
    if _on_this_machine(run.master):
        made.setdefault("spark.driver.host", "127.0.0.1")
    python = made.get(EXECUTOR_PYTHON) or environment.get("PYSPARK_PYTHON") or _default_python(run.master)
    # Planning workers must find it here, whether or not the driver's environment is activated.
    folders = [str(Path(sys.executable).parent), environment.get("PATH", "")]
    environment.update(driver_environment(python), PATH=os.pathsep.join(filter(None, folders)))
    if made.get(INSTALLED, "").lower() != "true":
        for name, value in spark_settings(kept_archive(state / ARCHIVES_FOLDER)).items():
            separator = "," if name == "spark.archives" else os.pathsep
            made[name] = separator.join(filter(None, (value, made.get(name))))
    return made


def _on_this_machine(master: str) -> bool:
    return master.startswith("spark://") and urlsplit(master).hostname in _LOOPBACK


def _default_python(master: str) -> str:
    """The driver's path says nothing about other machines, its version does: they must be the same."""
    if _on_this_machine(master):
        return sys.executable
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"

"""A Spark standalone cluster from the PySpark that pip installed: one master, two workers, as processes.

    with SparkStandalone(workers=2) as cluster:
        SparkSession.builder.master(cluster.url)

The executors run `bare_python`: an interpreter of the same version with no packages at all. What they need
comes to them in an archive (`tidelog.pipelines.executor_archive`); `settings` and `environment` say how, for
a session of one's own. `tidelog pipeline run` does that by itself.
Processes are groups of their own and end with `close`, executors included.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pyspark

from tests.spark.spark_driver import command_of, descendants
from tidelog.pipelines.executor_archive import build, driver_environment, spark_settings
from tidelog.testing.ports import ReservedPort

START_SECONDS_MAX = 60.0
WORKER_MEMORY = "1g"
EXECUTOR_BACKEND = "CoarseGrainedExecutorBackend"


class SparkStandalone:
    """One master and its workers, each with one core."""

    def __init__(self, workers: int = 2) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidelog-standalone-")
        self.folder = Path(self._folder.name)
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = ReservedPort()
        self.url = f"spark://127.0.0.1:{self._port.port}"
        self.bare_python = self.folder / "bare" / "bin" / "python"

    def __enter__(self) -> "SparkStandalone":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder / "bare")], check=True)
        try:
            self._launch("master.Master", "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2])
            for number in range(self._workers):
                self._launch(
                    *("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", WORKER_MEMORY),
                    *("--work-dir", str(self.folder / f"work-{number}"), self.url),
                )
            self._wait_registered()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def settings(self) -> dict[str, str]:
        """The configuration of a session whose executors have nothing installed."""
        archive = self.folder / "executors.zip"
        return {
            **spark_settings(archive if archive.exists() else build(archive)),
            "spark.executor.memory": "512m",
            "spark.cores.max": str(self._workers),
        }

    @property
    def environment(self) -> dict[str, str]:
        """What the driver's process is started with."""
        return {**os.environ, **driver_environment(str(self.bare_python)), "SPARK_LOCAL_IP": "127.0.0.1"}

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace")
            except OSError:
                continue
            folder = _working_folder(path.parent) if EXECUTOR_BACKEND in words else None
            if folder is not None and folder.is_relative_to(self.folder):
                found.append(int(path.parent.name))
        return sorted(found)

    def executor_pythons(self) -> set[str]:
        """The interpreters that the executors have started."""
        executors = self.executors()
        daemons = [child for executor in executors for child in descendants(executor)]
        commands = [command_of(daemon) for daemon in daemons]
        return {command[0] for command in commands if "pyspark.daemon" in command}

    def log_text(self) -> str:
        """What master, workers and executors wrote."""
        paths = [self.folder / "standalone.log", *sorted(self.folder.glob("work-*/*/*/stderr"))]
        return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())

    def close(self) -> None:
        for executor in self.executors():
            _end(executor)
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for executor in self.executors():
            _end(executor)
        self._port.close()
        self._folder.cleanup()

    def _launch(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        environment = {
            # Executors inherit this; nothing of the driver's environment may help them.
            **{key: value for key, value in os.environ.items() if not key.startswith(("PY", "VIRTUAL_ENV"))},
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false -Dspark.master.ui.port=0",
            "SPARK_WORKER_OPTS": "-Dspark.worker.ui.port=0",
        }
        with (self.folder / "standalone.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def _wait_registered(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.log_text().count("Registering worker") < self._workers:
            if time.monotonic() > deadline or any(one.poll() is not None for one in self._processes):
                raise TimeoutError(f"the Spark cluster does not start:\n{self.log_text()[-3_000:]}")
            time.sleep(0.2)


def _working_folder(process: Path) -> Path | None:
    try:
        return (process / "cwd").resolve(strict=True)
    except OSError:
        return None


def _end(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)

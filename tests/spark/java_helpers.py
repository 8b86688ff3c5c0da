"""Servers of tests that are one Java file, run with jars from Maven Central (`java FILE`).

    with JavaHelper("MiniYarn", [jars], folder, folder_argument) as first_line: …

A helper says one line when it is ready, and ends when its standard input is closed: with the test process.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyspark

SOURCES = Path(__file__).parent / "java"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 20.0


class JavaHelper:
    """One process; a context manager that gives what it said when it was ready."""

    def __init__(self, name: str, jars: Sequence[Path], folder: Path, *arguments: str) -> None:
        class_path = os.pathsep.join(str(jar) for jar in jars)
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={folder}"]
        self._command = ["java", *options, "-cp", class_path, str(SOURCES / f"{name}.java"), *arguments]
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> str:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            return self._first_line(self._process)
        except BaseException:
            self.close()
            raise

    def _first_line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not select.select([process.stdout], [], [], 0.2)[0]:
            assert process.poll() is None and time.monotonic() < deadline, self.log_text()
        line = process.stdout.readline().strip()
        assert line, self.log_text()
        return line

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, with all that it has started in its group."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(STOP_SECONDS_MAX)
            self._process.stdout.close()

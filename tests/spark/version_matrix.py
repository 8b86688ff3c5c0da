"""Every supported minor version of Spark that PyPI has, each in an environment of its own.

    python -m tests.spark.version_matrix [4.0 4.2] [--records 60000]

For each: the newest patch is installed with what the project pins otherwise, then the tests of
`test_spark_versions`, the checks of plans, and records through a sink whose driver, with its JVM, is killed
in the middle, compared by content. The exit code is 0 only if all of it is green.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.support.child_programs import ROOT
from tidelog.pipelines.spark_versions import SUPPORTED

ENVIRONMENTS = ROOT / ".venv" / "spark-versions"
#: Spark pins its own, another for each version
UNPINNED = ("pyspark", "py4j")
STEP_SECONDS_MAX = 1_500
COLUMNS = {
    "batch read and write": "test_a_batch_is_read_and_written",
    "stream over restarts": "test_a_stream_is_written_once_over_restarts",
    "flows": "test_a_flow_with_state_and_one_without",
    "limits": "test_limits_are_kept_or_said_to_be_not",
}
SUITE = ("tests/spark/test_spark_versions.py", "tests/spark/test_spark_plan.py")


class Column(NamedTuple):
    """One result."""

    name: str
    passed: bool
    seconds: float


def newest(minor: str) -> str:
    """The newest patch of a minor version that PyPI has."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "pyspark"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    found = re.findall(rf"\b{re.escape(minor)}\.(\d+)\b(?![.\w])", listed)
    if not found:
        raise SystemExit(f"PyPI has no Spark {minor}")
    return f"{minor}.{max(map(int, found))}"


def environment(version: str) -> Path:
    """The Python of an environment with this Spark, made if it is not there."""
    folder = ENVIRONMENTS / version
    python = folder / "bin" / "python"
    ready = folder / ".installed"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pins = folder / "constraints.txt"
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pins.write_text("\n".join(line for line in lines if not line.lower().startswith(UNPINNED)) + "\n")
        packages: list[str] = [f"pyspark=={version}", "-e", f"{ROOT}[dev,spark]"]
        command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "-c", pins, *packages]
        subprocess.run(command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        ready.touch()
    return python


def run(command: Sequence[str | Path]) -> bool:
    """Run one thing; what it says is shown when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TIDELOG_SPARK_TESTS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS_MAX,
    )
    if done.returncode:
        print(done.stdout[-6_000:])
    return done.returncode == 0


def check(version: str, records: int) -> list[Column]:
    """Everything for one version."""
    python = environment(version)
    report = ENVIRONMENTS / f"{version}.xml"
    report.unlink(missing_ok=True)
    suite = ["-q", "-n0", "-p", "no:cacheprovider", f"--junitxml={report}", *SUITE]
    everything = run([python, "-m", "pytest", *suite])
    # Without a report nothing was run, and nothing has passed.
    found = ElementTree.parse(report).iter("testcase") if report.exists() else iter(())
    cases = {case.attrib["name"]: case for case in found}
    columns = [
        # A test that is not in the report has not passed.
        Column(words, name in cases and not len(cases[name]), _seconds(cases.get(name)))
        for words, name in COLUMNS.items()
    ]
    columns.append(Column("all tests", everything, sum(map(_seconds, cases.values()))))
    began = time.monotonic()
    kills = ["--driver-kills", "2", "--worker-kills", "1", "--contrast-records", "0", "--seed", "7"]
    program = ["run", "--records", str(records), "--records-per-batch", str(records // 6), *kills]
    exact = run([python, "-m", "tests.spark.exactly_once_spark", *program])
    columns.append(Column("exactly once, drivers killed", exact, time.monotonic() - began))
    return columns


def _seconds(case: ElementTree.Element | None) -> float:
    return 0.0 if case is None else float(case.attrib["time"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [f"{major}.{minor}" for major, minor in SUPPORTED]
    parser.add_argument("minors", nargs="*", default=known, metavar="MINOR", help=f"default: {known}")
    parser.add_argument("--records", type=int, default=60_000)
    options = parser.parse_args()
    table = {}
    for minor in options.minors:
        version = newest(minor)
        table[version] = check(version, options.records)
        print(
            f"Spark {version}: " + ", ".join(f"{one.name} {_word(one)}" for one in table[version]), flush=True
        )
    return 0 if all(one.passed for columns in table.values() for one in columns) else 1


def _word(column: Column) -> str:
    return f"{'ok' if column.passed else 'FAILED'} ({column.seconds:.0f} s)"


if __name__ == "__main__":
    raise SystemExit(main())

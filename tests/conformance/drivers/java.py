"""The Java client: a single source file run by `java`, its jars fetched once by Maven into the cache."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.drivers.contract import require_program, unavailable
from tests.support.maven_jars import NoJars, maven_jars

KAFKA_CLIENTS_VERSION = "4.3.1"
SOURCE = Path(__file__).parent.parent / "java" / "Conformance.java"
RUN_SECONDS = 60

#: with what OAUTHBEARER needs and the client does not bring
CLIENT = (
    f"org.apache.kafka:kafka-clients:{KAFKA_CLIENTS_VERSION}",
    "com.fasterxml.jackson.core:jackson-databind:2.19.0",
    "org.bitbucket.b_c:jose4j:0.9.6",
)
TOOLS = (f"org.apache.kafka:kafka-tools:{KAFKA_CLIENTS_VERSION}",)


def jars() -> Path:
    """The folder of the client's jars, filled on first use."""
    return _fetched("kafka-clients", CLIENT, ".complete-with-jackson")


def tool_jars() -> Path:
    """The folder of the jars of Kafka's command-line tools, filled on first use."""
    return _fetched("kafka-tools", TOOLS, ".complete")


def _fetched(name: str, artifacts: Sequence[str], marker: str) -> Path:
    try:
        return maven_jars(f"{name}-{KAFKA_CLIENTS_VERSION}", artifacts, marker=marker)
    except NoJars as fault:
        unavailable(str(fault))


def java_command(source: Path, *arguments: str, jars_folder: Path | None = None) -> list[str]:
    """How to run a source file that uses the client, or the jars of another folder."""
    java = require_program("java")
    class_path = f"{jars_folder or jars()}/*"
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    return [java, *options, str(source), *arguments]


def run_java(bootstrap: str, scenario: str, *arguments: str) -> list[tuple[str, str]]:
    """What the scenario said, in order, as names and values."""
    command = java_command(SOURCE, bootstrap, scenario, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, f"{scenario} failed: {done.stderr[-3000:]}"
    return [(name, value) for name, _, value in (line.partition("=") for line in done.stdout.splitlines())]

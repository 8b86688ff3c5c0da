"""The Java client: a single source file run by `java`, its jars fetched once by Maven into the cache."""

import os
import subprocess
from pathlib import Path

from tests.conformance.drivers.contract import require_program, unavailable

KAFKA_CLIENTS_VERSION = "4.3.1"
SOURCE = Path(__file__).parent.parent / "java" / "Conformance.java"
RUN_SECONDS = 60
FETCH_SECONDS = 300

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.tests</groupId><artifactId>kafka-clients</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{KAFKA_CLIENTS_VERSION}</version>
    </dependency>
    <!-- OAUTHBEARER needs it, and the client does not bring it -->
    <dependency>
      <groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-databind</artifactId><version>2.19.0</version>
    </dependency>
    <dependency>
      <groupId>org.bitbucket.b_c</groupId><artifactId>jose4j</artifactId><version>0.9.6</version>
    </dependency>
  </dependencies>
</project>
"""


TOOLS_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.tests</groupId><artifactId>kafka-tools</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_CLIENTS_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def jars() -> Path:
    """The folder of the client's jars, filled on first use."""
    return _fetched("kafka-clients", ".complete-with-jackson", POM)


def tool_jars() -> Path:
    """The folder of the jars of Kafka's command-line tools, filled on first use."""
    return _fetched("kafka-tools", ".complete", TOOLS_POM)


def _fetched(name: str, marker: str, project: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog"
    folder = cache / f"{name}-{KAFKA_CLIENTS_VERSION}"
    complete = folder / marker
    if complete.exists():
        return folder
    maven = require_program("mvn")
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(project)
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    try:
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        unavailable(f"{name} {KAFKA_CLIENTS_VERSION} did not come from Maven in {FETCH_SECONDS} s")
    if fetched.returncode:
        unavailable(f"{name} {KAFKA_CLIENTS_VERSION} could not be fetched: {fetched.stdout[-500:]}")
    complete.touch()
    return folder


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

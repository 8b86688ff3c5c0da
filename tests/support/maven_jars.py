"""Jars from Maven Central, fetched once into this user's cache.

folder = maven_jars("s3proxy-4.1.0", ["org.gaul:s3proxy:4.1.0:jar-with-dependencies"], transitive=False)
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FETCH_SECONDS = 600
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog"


class NoJars(Exception):
    """Maven is not here, or could not bring them."""


def maven_jars(
    folder_name: str, artifacts: Sequence[str], *, transitive: bool = True, marker: str = ".complete"
) -> Path:
    """The folder with these artifacts (`group:name:version[:classifier]`) and what they need; raises NoJars.

    Another `marker` has a folder filled anew that an earlier list of artifacts has filled.
    """
    folder = CACHE / folder_name
    complete = folder / marker
    if complete.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise NoJars("mvn is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(_project(artifacts, transitive))
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NoJars(f"{folder_name} did not come from Maven in {FETCH_SECONDS} s") from None
    if done.returncode:
        raise NoJars(f"{folder_name} could not be fetched: {done.stdout[-500:]}")
    complete.touch()
    return folder


def _project(artifacts: Sequence[str], transitive: bool) -> str:
    rows = "".join(_dependency(one, transitive) for one in artifacts)
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.tests</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>
{rows}  </dependencies>
</project>
"""


def _dependency(artifact: str, transitive: bool) -> str:
    group, name, version, *classifier = artifact.split(":")
    parts = f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    if classifier:
        parts += f"<classifier>{classifier[0]}</classifier>"
    if not transitive:
        every = "<groupId>*</groupId><artifactId>*</artifactId>"
        parts += f"<exclusions><exclusion>{every}</exclusion></exclusions>"
    return f"    <dependency>{parts}</dependency>\n"

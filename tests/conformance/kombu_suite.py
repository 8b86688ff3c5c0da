"""Run kombu's own integration tests of its AMQP transport, as its PyPI source distribution carries them.

    python -m tests.conformance.kombu_suite [pytest options]

They run before a broker and a gateway that are started for the run; with AMQP_HOST and AMQP_PORT before
whatever is there, RabbitMQ for example. The distribution is fetched once into ~/.cache/tidelog. All of them
must pass.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.support.amqp_gateway import GatewayProcess
from tidelog.testing.broker import RunningBroker

FETCH_SECONDS = 120
RUN_SECONDS = 600
SETTINGS = "[pytest]\npython_classes = test_*\nmarkers =\n  env: which transport\n  flaky: how often again\n"


def fetched() -> Path:
    """The tests of the installed version, without the package beside them."""
    wanted = version("kombu")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog" / "kombu-suite"
    folder = cache / f"kombu-{wanted}"
    if not (folder / "t" / "pytest.ini").exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--dest", str(cache), f"kombu=={wanted}"]
        subprocess.run(command, check=True, timeout=FETCH_SECONDS)
        with tarfile.open(cache / f"kombu-{wanted}.tar.gz") as opened:
            members = [each for each in opened.getmembers() if each.name.startswith(f"kombu-{wanted}/t/")]
            opened.extractall(cache, members, filter="data")
        (folder / "t" / "pytest.ini").write_text(SETTINGS)
    return folder


@contextmanager
def target() -> Iterator[tuple[str, str]]:
    if "AMQP_HOST" in os.environ:
        yield os.environ["AMQP_HOST"], os.environ.get("AMQP_PORT", "5672")
        return
    with RunningBroker(mode="process") as broker, GatewayProcess(broker.bootstrap) as gateway:
        yield "127.0.0.1", str(gateway.port)


def main() -> int:
    folder = fetched()
    command = [sys.executable, "-m", "pytest", "-q", "-c", "t/pytest.ini", "--rootdir", ".", "--timeout=60"]
    command += ["-W", "ignore", "-p", "no:cacheprovider", "-p", "no:tidelog", "t/integration/test_py_amqp.py"]
    with target() as (host, port):
        environment = {**os.environ, "RABBITMQ_HOST": host, "RABBITMQ_5672_TCP": port}
        done = subprocess.run(
            command + sys.argv[1:], cwd=folder, env=environment, timeout=RUN_SECONDS, check=False
        )
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())

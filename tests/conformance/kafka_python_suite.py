"""Run kafka-python's own integration tests, as its PyPI source distribution carries them, against a broker.

    python -m tests.conformance.kafka_python_suite [pytest options]      a Tidelog broker started for the run

With TIDELOG_TEST_BOOTSTRAP=host:port it is any broker: the oracle.

The distribution is fetched once into ~/.cache/tidelog. It lacks two small files that its tests import; they
are written beside it (see `complete`). What is left out, and why, stands in two tables; a test that is not
named there must pass. Some tests assume that the broker has the id 0.
"""

import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

FETCH_SECONDS = 120
RUN_SECONDS = 600
TEST_SECONDS = 60

ADMIN = "test/integration/test_admin_integration.py"
PRODUCER = "test/integration/test_producer_integration.py"
EXCLUDED_EVERYWHERE = {
    f"{ADMIN}::test_create_describe_delete_acls": "needs a broker with an authorizer",
    "test/integration/test_sasl_integration.py": "starts brokers of its own from a Kafka distribution",
    "test/integration/test_ssl_integration.py": "starts brokers of its own from a Kafka distribution",
}
EXCLUDED_ON_TIDELOG = {
    f"{PRODUCER}::test_transactional_producer_messages": "transactions (P5) are not built yet",
    f"{PRODUCER}::test_transactional_producer_offsets": "transactions (P5) are not built yet",
    f"{ADMIN}::test_describe_metadata_quorum": "there is no KRaft quorum to describe",
    f"{ADMIN}::test_elect_leaders": "elections (B5) come with several brokers",
    f"{ADMIN}::test_alter_partition_reassignments": "reassignment (B6) comes with several brokers",
    f"{ADMIN}::test_list_partition_reassignments": "reassignment (B6) comes with several brokers",
    f"{ADMIN}::test_alter_replica_log_dirs": "moving a replica between log dirs is not built yet",
}


class Target(NamedTuple):
    """A broker to test: where it is, the Kafka whose API table it has, what is left out there and why."""

    bootstrap: str
    kafka_version: str
    excluded: dict[str, str]


# Its tests import this module, which the distribution does not carry; an external broker needs this much.
SERVICE_MODULE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def stop(self):
        pass

    close = stop


class SpawnedService:
    def __init__(self, *arguments, **options):
        raise RuntimeError("this run uses a broker that exists already")
"""


def fetched() -> Path:
    """The unpacked source distribution of the installed version."""
    wanted = version("kafka-python")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog" / "kafka-python-suite"
    folder = cache / f"kafka_python-{wanted}"
    if not (folder / "test" / "service.py").exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--dest", str(cache), f"kafka-python=={wanted}"]
        subprocess.run(command, check=True, timeout=FETCH_SECONDS)
        with tarfile.open(cache / f"kafka_python-{wanted}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
        complete(folder)
    return folder


def complete(folder: Path) -> None:
    """Make `test` a package (else Python's own of that name is found) and add the module it lacks."""
    (folder / "test" / "__init__.py").touch()
    (folder / "servers").mkdir(exist_ok=True)
    (folder / "test" / "service.py").write_text(SERVICE_MODULE)


@contextmanager
def target() -> Iterator[Target]:
    if address := os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        yield Target(address, os.environ.get("KAFKA_VERSION", "4.3.1"), EXCLUDED_EVERYWHERE)
        return
    from tidelog.testing.broker import RunningBroker

    with socket.create_server(("127.0.0.1", 0)) as free:
        listener = f"PLAINTEXT://127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "broker.id": "0",
        "listeners": listener,
        "advertised.listeners": listener,
        "num.partitions": "4",
        "group.min.session.timeout.ms": "100",
    }
    with RunningBroker(settings, mode="process") as running:
        yield Target(running.bootstrap, "4.2.0", EXCLUDED_EVERYWHERE | EXCLUDED_ON_TIDELOG)


def main() -> int:
    folder = fetched()
    command = [sys.executable, "-m", "pytest", "test/integration", "-q", f"--timeout={TEST_SECONDS}"]
    # CPython 3.11's parser overflows where pytest draws a traceback of this suite by itself.
    command += ["--tb=native", "--show-capture=no", "-W", "ignore", "-p", "no:cacheprovider"]
    command += ["-p", "no:hypothesispytest", "-p", "no:tidelog"]
    with target() as broker:
        for name, reason in broker.excluded.items():
            print(f"left out: {name}: {reason}", flush=True)
            command += ["--deselect", name]
        environment = {
            **os.environ,
            "KAFKA_URI": f"PLAINTEXT://{broker.bootstrap}",
            "KAFKA_VERSION": broker.kafka_version,
            "KAFKA_ROOT": str(folder / "servers"),
        }
        command += sys.argv[1:]
        done = subprocess.run(command, cwd=folder, env=environment, timeout=RUN_SECONDS, check=False)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())

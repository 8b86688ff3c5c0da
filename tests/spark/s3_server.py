"""An object store of its own for a test: S3Proxy, which speaks S3 and keeps objects in a folder.

    with S3Server() as server:
        names = server.keys("bucket/files")

It comes from Maven Central (`org.gaul:s3proxy`); it asks for signed requests, as S3 does.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from pyarrow import fs

from tests.support.maven_jars import maven_jars
from tidelog.testing.ports import ReservedPort

VERSION = "4.1.0"
IDENTITY, SECRET = "tidelog-tests", "not-a-secret"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0


class S3Server:
    """One server with an empty bucket called `bucket`; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidelog-s3-")
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{self._port.port}"

    @property
    def files(self) -> fs.S3FileSystem:
        """The store as Arrow sees it: a client that is not Spark's."""
        return fs.S3FileSystem(
            access_key=IDENTITY,
            secret_key=SECRET,
            endpoint_override=self.address,
            scheme="http",
            region="us-east-1",
        )

    def keys(self, folder: str) -> list[str]:
        """The objects below a folder, from there, without the marks that stand for empty folders."""
        found = self.files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        return sorted(one.path.removeprefix(f"{folder}/") for one in found if one.type == fs.FileType.File)

    def __enter__(self) -> "S3Server":
        folder = Path(self._folder.name)
        (folder / "objects" / "bucket").mkdir(parents=True)
        properties = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": IDENTITY,
            "s3proxy.credential": SECRET,
            "s3proxy.endpoint": f"http://{self.address}",
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(folder / "objects"),
        }
        (folder / "s3proxy.conf").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        jars = maven_jars(
            f"s3proxy-{VERSION}", [f"org.gaul:s3proxy:{VERSION}:jar-with-dependencies"], transitive=False
        )
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-jar", *map(str, jars.glob("*.jar"))]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--properties", str(folder / "s3proxy.conf")],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port.port), 1).close()
                return
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"S3Proxy did not start:\n{self.log_text()}") from None
                time.sleep(0.1)

    def log_text(self) -> str:
        return (Path(self._folder.name) / "log").read_text(errors="replace")[-4_000:]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and throw its objects away."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_SECONDS_MAX)
        self._port.close()
        self._folder.cleanup()

"""A broker for tests of the client: answers by a script, over TCP or TLS, one connection at a time."""

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidelog.client.requests import flexible_answer, flexible_header
from tidelog.protocol import messages
from tidelog.protocol.apis import API_VERSIONS, APIS

#: (api key, version, correlation id, body) → the answer's body, None for silence, or an exception to hang up
Script = Callable[[int, int, bytes], "bytes | None"]


def versions_answer(version: int, rows: dict[int, tuple[int, int]]) -> bytes:
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in rows.items()]
    return messages.encode_response(APIS[API_VERSIONS], version, {"api_keys": keys})


class ScriptedBroker:
    """Listens on a port of 127.0.0.1 until it is closed."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "ScriptedBroker":
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection, connection.makefile("rb") as stream:
                    self._converse(connection, stream)
            except (OSError, EOFError):
                connection.close()

    def _converse(self, connection: socket.socket, stream: Any) -> None:
        while len(size := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">i", size)[0])
            api_key, version, correlation_id, name_length = struct.unpack_from(">hhih", frame)
            body = frame[10 + name_length + flexible_header(api_key, version) :]
            self.requests.append((api_key, version))
            answer = self.script(api_key, version, body)
            if answer is None:
                continue
            tags = b"\0" if flexible_answer(api_key, version) else b""
            head = struct.pack(">ii", 4 + len(tags) + len(answer), correlation_id)
            connection.sendall(head + tags + answer)


def make_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key, for a host."""
    certificate, key = folder / f"{host}.pem", folder / f"{host}.key"
    names = f"DNS:{host},IP:127.0.0.1" if host == "localhost" else f"DNS:{host}"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {key}"
        f" -out {certificate} -days 2 -subj /CN={host} -addext subjectAltName={names}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return certificate, key

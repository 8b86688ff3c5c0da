"""Asks a schema registry, ours or another with the same API: requests and answers as JSON, bounded in size
and time.

    RegistryClient("http://localhost:8081").ask("GET", "/subjects")

Redirects are not followed, for they could carry the password elsewhere. What the registry refuses is raised
as `RegistryFault` with its code.
"""

import base64
import http.client
import json
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

ANSWER_BYTES_MAX = 32 << 20


class RegistryFault(Exception):
    """An answer that is an error, with Confluent's code; the HTTP status is its first three digits."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


class RegistryUnreachable(Exception):
    """Nobody answers at the address, or what answers is no registry."""


class RegistryClient:
    """One registry; a connection for each request."""

    def __init__(
        self,
        url: str,
        user_info: str = "",
        timeout_seconds: float = 10.0,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a registry has an address like http://localhost:8081")
        given, _, self._place = parts.netloc.rpartition("@")
        self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        secret = user_info or given
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if secret:
            self._headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
        self._timeout_seconds = timeout_seconds
        self._answer_bytes_max = answer_bytes_max

    def __repr__(self) -> str:
        return f"<RegistryClient {self._place}>"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; raises RegistryFault, RegistryUnreachable."""
        connection = self._connection()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._prefix + path, data, self._headers)
            answer = connection.getresponse()
            found = answer.read(self._answer_bytes_max + 1)
            whole = not answer.length and len(found) <= self._answer_bytes_max
        except (OSError, http.client.HTTPException) as fault:
            raise RegistryUnreachable(f"{self._place}: {fault}") from fault
        finally:
            connection.close()
        try:
            value = json.loads(found) if whole else None
        except (ValueError, RecursionError) as fault:
            if answer.status >= 300:
                raise RegistryFault(answer.status, f"HTTP {answer.status}") from fault
            raise RegistryUnreachable(f"{self._place} does not answer as a registry does") from fault
        if not whole:
            raise RegistryUnreachable(f"the answer of {self._place} broke off, or is too large")
        if answer.status >= 300:
            told = value if isinstance(value, dict) else {}
            code = told.get("error_code")
            raise RegistryFault(
                code if isinstance(code, int) else answer.status,
                str(told.get("message") or f"HTTP {answer.status}")[:2_000],
            )
        return value

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_seconds, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_seconds)


def subject_path(subject: str) -> str:
    """A subject as a segment of a path."""
    return quote(subject, safe="")

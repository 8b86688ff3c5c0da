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

from tidelog.registry.faults import FORWARDING_FAILED, RegistryFault

ANSWER_BYTES_MAX = 32 << 20


class RegistryUnreachable(Exception):
    """Nobody answers at the address, or what answers is no registry."""


class RegistryClient:
    """One registry; a connection for each request."""

    def __init__(self, url: str, user_info: str = "", timeout_seconds: float = 10.0) -> None:
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

    def __repr__(self) -> str:
        return f"<RegistryClient {self._place}>"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; raises RegistryFault, RegistryUnreachable."""
        connection = self._connection()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._prefix + path, data, self._headers)
            answer = connection.getresponse()
            found = answer.read(ANSWER_BYTES_MAX + 1)
            whole = not answer.length and len(found) <= ANSWER_BYTES_MAX
        except (OSError, http.client.HTTPException) as fault:
            raise RegistryUnreachable(f"{self._place}: {fault}") from fault
        finally:
            connection.close()
        try:
            value = json.loads(found) if whole else None
        except (ValueError, RecursionError) as fault:
            raise RegistryUnreachable(f"{self._place} does not answer as a registry does") from fault
        if not whole:
            raise RegistryUnreachable(f"the answer of {self._place} broke off, or is too large")
        if answer.status >= 300:
            told = value if isinstance(value, dict) else {}
            code = int(told.get("error_code") or FORWARDING_FAILED)
            raise RegistryFault(code, str(told.get("message") or f"HTTP {answer.status}"))
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

"""A blocking connection to one broker: TCP or TLS, SASL, ApiVersions, requests and their answers.

    link = Link.open("localhost", 9092, settings)
    answer = link.request(METADATA, {"topics": None}, highest=12)   # kio's object
    ticket = link.send(FETCH, version, body)                        # pipelined: several may be under way
    body = link.receive(ticket)                                     # a view of the answer's bytes

Answers come in the order of the requests; one that is received while earlier ones are outstanding leaves
those waiting for their `receive`. A link belongs to one thread at a time. Once anything went wrong on it
(`LinkFault`) it is closed and every further use raises LinkFault: open another one.

Versions: what the broker offers is asked once, at the start; `version_of` picks the highest that both sides
speak. A broker that does not know ApiVersions v3 answers with v0 and what it knows, as brokers since 0.10 do.
"""

import contextlib
import os
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tidelog.client import sasl
from tidelog.client.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, LinkFault, Refusal, UnsupportedVersion
from tidelog.client.requests import (
    CORRELATION_ID,
    MalformedAnswer,
    api_name,
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.addresses import address_text
from tidelog.model.errors import ErrorCode

#: no answer of a broker is larger, save by mistake
ANSWER_BYTES_MAX = 1 << 30
#: requests under way on one link
IN_FLIGHT_MAX = 64
_API_VERSIONS_VERSION = 3
_CORRELATION_IDS = 1 << 31
_SIZE = struct.Struct(">i")


class Link:
    """An open connection; made by `Link.open`."""

    def __init__(self, address: tuple[str, int], stream: socket.socket, settings: ClientSettings) -> None:
        self.address = address
        self.settings = settings
        self._socket = stream
        self._closed: str | None = None
        self._client_id = settings.client_id.encode()
        self._correlation_id = 0
        #: correlation id, whether its answer's header has tags; in the order of sending
        self._under_way: dict[int, bool] = {}
        self._arrived: dict[int, memoryview] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self._closed else f"{len(self._under_way)} under way"
        return f"<Link {address_text(*self.address)} {self.settings.security_protocol} {state}>"

    @classmethod
    def open(cls, host: str, port: int, settings: ClientSettings) -> "Link":
        """Connect, agree on versions, say who we are; raises LinkFault or AuthenticationFailed."""
        seconds = settings.connection_timeout_ms / 1000
        try:
            stream = socket.create_connection((host, port), timeout=seconds)
        except OSError as fault:
            raise LinkFault(f"no connection to {address_text(host, port)}: {_reason(fault)}") from fault
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if settings.encrypted:
                stream = _encrypt(stream, host, port, settings)
            link = cls((host, port), stream, settings)
            link._agree_on_versions()
            if settings.authenticated:
                link._authenticate()
        except BaseException:
            stream.close()
            raise
        return link

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def close(self, reason: str = "closed here") -> None:
        """Close; what is under way will not be answered."""
        if self._closed is None:
            self._closed = reason
            self._under_way.clear()
            self._arrived.clear()
            with contextlib.suppress(OSError):
                self._socket.close()

    @property
    def certificate_expires_at(self) -> float | None:
        """When the broker's certificate ends, in seconds; None without TLS or where it is not verified."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return None
        ends = (self._socket.getpeercert() or {}).get("notAfter")
        return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None

    # Versions

    def offers(self, api_key: int) -> tuple[int, int] | None:
        """The versions of an API that the broker speaks; None if it does not know it."""
        return self._versions.get(api_key)

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """Every API that the broker speaks, with its lowest and highest version."""
        return dict(self._versions)

    def version_of(self, api_key: int, lowest: int, highest: int) -> int:
        """The highest version between the two that the broker speaks; raises UnsupportedVersion."""
        offered = self._versions.get(api_key)
        version = -1 if offered is None else min(highest, offered[1])
        if offered is None or version < max(lowest, offered[0]):
            has = "none" if offered is None else f"{offered[0]} to {offered[1]}"
            raise UnsupportedVersion(
                f"{address_text(*self.address)} offers {has} of {api_name(api_key)},"
                f" versions {lowest} to {highest} are needed"
            )
        return version

    # Requests

    def request(
        self,
        api_key: int,
        fields: dict[str, Any],
        *,
        lowest: int = 0,
        highest: int,
        timeout_ms: int | None = None,
    ) -> Any:
        """Ask and wait; the answer is kio's object for the version that was agreed on."""
        version = self.version_of(api_key, lowest, highest)
        return self._ask(api_key, version, fields, timeout_ms)

    def send(self, api_key: int, version: int, body: bytes | Sequence[bytes | memoryview]) -> int:
        """Send a request and return the ticket for `receive`.

        The body may come in pieces; large ones are not copied together. A request that is never answered
        (Produce with acks=0) goes through `send_unanswered`.
        """
        correlation_id = self._write(api_key, version, body)
        self._under_way[correlation_id] = flexible_answer(api_key, version)
        return correlation_id

    def send_unanswered(self, api_key: int, version: int, body: bytes | Sequence[bytes | memoryview]) -> None:
        """Send a request that gets no answer (Produce with acks=0)."""
        self._write(api_key, version, body)

    def receive(self, ticket: int, timeout_ms: int | None = None) -> memoryview:
        """Wait for the answer of a request that was sent; the view is the caller's own."""
        self._check_open()
        deadline = time.monotonic() + (timeout_ms or self.settings.request_timeout_ms) / 1000
        while ticket not in self._arrived:
            assert ticket in self._under_way, "this answer was received, or never asked for"
            self._read_answer(deadline)
        return self._arrived.pop(ticket)

    def receive_decoded(self, ticket: int, api_key: int, version: int, timeout_ms: int | None = None) -> Any:
        """The same as kio's object."""
        return self._decoded(api_key, version, self.receive(ticket, timeout_ms))

    def forget(self, ticket: int) -> None:
        """Nobody will receive this answer; one that has not come yet costs the link."""
        if ticket in self._arrived:
            del self._arrived[ticket]
        elif ticket in self._under_way:
            self.close("an answer under way is no longer wanted")

    # Inside

    def _ask(self, api_key: int, version: int, fields: dict[str, Any], timeout_ms: int | None = None) -> Any:
        ticket = self.send(api_key, version, encode_request(api_key, version, fields))
        return self.receive_decoded(ticket, api_key, version, timeout_ms)

    def _decoded(self, api_key: int, version: int, body: memoryview) -> Any:
        try:
            return decode_response(api_key, version, body)
        except MalformedAnswer as fault:
            raise self._broken(
                f"its answer to {api_name(api_key)} v{version} cannot be read: {fault}"
            ) from fault

    def _write(self, api_key: int, version: int, body: bytes | Sequence[bytes | memoryview]) -> int:
        self._check_open()
        if len(self._under_way) >= IN_FLIGHT_MAX:
            raise AssertionError(f"{IN_FLIGHT_MAX} requests are under way: receive before sending more")
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        pieces: Sequence[bytes | memoryview] = (body,) if isinstance(body, bytes) else body
        size = sum(len(piece) for piece in pieces)
        prefix = frame_prefix(api_key, version, self._correlation_id, self._client_id, size)
        try:
            self._socket.settimeout(self.settings.request_timeout_ms / 1000)
            if size < 64 << 10:
                self._socket.sendall(b"".join((prefix, *pieces)))
            else:
                self._socket.sendall(prefix)
                for piece in pieces:
                    self._socket.sendall(piece)
        except OSError as fault:
            raise self._broken(_reason(fault)) from fault
        return self._correlation_id

    def _read_answer(self, deadline: float) -> None:
        """Read one frame, whichever comes, and keep it for its receiver."""
        size = _SIZE.unpack(self._read_exactly(_SIZE.size, deadline))[0]
        if not CORRELATION_ID.size <= size <= ANSWER_BYTES_MAX:
            raise self._broken(
                f"it announced an answer of {size} bytes; is this a Kafka port, and is TLS as it expects?"
            )
        frame = memoryview(self._read_exactly(size, deadline))
        correlation_id = CORRELATION_ID.unpack_from(frame)[0]
        expected = next(iter(self._under_way))
        if correlation_id != expected:
            raise self._broken(f"answer {correlation_id} came where {expected} was due")
        flexible = self._under_way.pop(correlation_id)
        try:
            self._arrived[correlation_id] = response_body(frame, flexible)
        except MalformedAnswer as fault:
            raise self._broken(f"the header of its answer cannot be read: {fault}") from fault

    def _read_exactly(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        position = 0
        try:
            while position < size:
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    raise TimeoutError
                self._socket.settimeout(seconds)
                count = self._socket.recv_into(view[position:])
                if count == 0:
                    raise self._broken("it closed the connection" + self._silent_hint())
                position += count
        except OSError as fault:
            raise self._broken(_reason(fault)) from fault
        return data

    def _silent_hint(self) -> str:
        if self._versions:
            return ""
        return " at the first request; does security.protocol fit this port?"

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LinkFault(f"the link to {address_text(*self.address)} is gone: {self._closed}")

    def _broken(self, reason: str) -> LinkFault:
        self.close(reason)
        return LinkFault(f"{address_text(*self.address)}: {reason}")

    def _agree_on_versions(self) -> None:
        from tidelog import __version__

        version = _API_VERSIONS_VERSION
        fields = {"client_software_name": "tidelog-client", "client_software_version": __version__}
        ticket = self.send(API_VERSIONS, version, encode_request(API_VERSIONS, version, fields))
        body = self.receive(ticket, self.settings.connection_timeout_ms)
        if len(body) >= 2 and struct.unpack_from(">h", body)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            ticket = self.send(API_VERSIONS, version, encode_request(API_VERSIONS, version, {}))
            body = self.receive(ticket, self.settings.connection_timeout_ms)
        answer = self._decoded(API_VERSIONS, version, body)
        if answer.error_code:
            raise Refusal(answer.error_code, "asking for the broker's versions")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        for feature in getattr(answer, "finalized_features", ()):
            self.finalized_features[feature.name] = feature.max_version_level

    def _authenticate(self) -> None:
        mechanism = self.settings.sasl_mechanism
        timeout_ms = self.settings.connection_timeout_ms
        # Version 0 is followed by bare tokens without frames of their own; brokers since 1.0 have version 1.
        answer = self.request(
            SASL_HANDSHAKE, {"mechanism": mechanism}, lowest=1, highest=1, timeout_ms=timeout_ms
        )
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationFailed(f"sasl.mechanism {mechanism}: the broker offers {offered}")
        exchange = sasl.exchange(self.settings)
        token = next(exchange)
        while True:
            answer = self.request(SASL_AUTHENTICATE, {"auth_bytes": token}, highest=2, timeout_ms=timeout_ms)
            if answer.error_code:
                raise AuthenticationFailed(
                    f"{mechanism} as {self.settings.sasl_username or 'bearer of a token'!r}:"
                    f" {answer.error_message or ErrorCode(int(answer.error_code)).name}"
                )
            try:
                token = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                return


def _reason(fault: OSError) -> str:
    if isinstance(fault, TimeoutError):
        return "no answer in time"
    if isinstance(fault, socket.gaierror):
        return "unknown host"
    if isinstance(fault, ssl.SSLError):
        return f"TLS: {fault.reason or fault}"
    return os.strerror(fault.errno).lower() if fault.errno else str(fault)


def _encrypt(stream: socket.socket, host: str, port: int, settings: ClientSettings) -> ssl.SSLSocket:
    context = tls_context(settings)
    try:
        return context.wrap_socket(stream, server_hostname=host)
    except ssl.SSLCertVerificationError as fault:
        raise AuthenticationFailed(
            f"the certificate of {address_text(host, port)} is not accepted: {fault.verify_message};"
            " name its authority with ssl.ca.location"
        ) from fault
    except ssl.SSLError as fault:
        raise LinkFault(
            f"{address_text(host, port)}: no TLS there, or not as expected: {fault.reason or fault}"
        ) from fault
    except OSError as fault:
        raise LinkFault(f"{address_text(host, port)}: {_reason(fault)} during the TLS handshake") from fault


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """What TLS connections are made with; raises AuthenticationFailed for files that cannot be used."""
    try:
        context = ssl.create_default_context(
            cafile=settings.ca_location or None, cadata=settings.ca_pem or None
        )
        if not (settings.check_hostname and settings.verify_certificate):
            context.check_hostname = False
        if not settings.verify_certificate:
            context.verify_mode = ssl.CERT_NONE
        with _certificate_files(settings) as (certificate, key):
            if certificate:
                context.load_cert_chain(certificate, key or None, settings.key_password or None)
    except (ssl.SSLError, OSError) as fault:
        raise AuthenticationFailed(f"the TLS certificates or keys cannot be used: {fault}") from fault
    return context


@contextlib.contextmanager
def _certificate_files(settings: ClientSettings) -> Iterator[tuple[str, str]]:
    """The certificate and key as files: Python's ssl reads them from nowhere else."""
    with contextlib.ExitStack() as stack:
        names: list[str] = []
        for location, pem in (
            (settings.certificate_location, settings.certificate_pem),
            (settings.key_location, settings.key_pem),
        ):
            if pem and not location:
                # Unreadable to others, and gone with this block.
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))
                file.write(pem)
                file.flush()
                location = file.name
            names.append(location)
        yield names[0], names[1]

"""A connection of an event loop to one broker: TLS, SASL, ApiVersions, requests and their answers.

The blocking `client.link.Link` belongs to one thread; a gateway has hundreds of queues open in one. Requests
are pipelined, answers come in their order. Whoever waits for an answer when the connection breaks gets a
LinkFault, and so does every later use: open another one.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.client import sasl
from tidelog.client.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, LinkFault, Refusal, UnsupportedVersion
from tidelog.client.link import tls_context
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

#: no answer that a gateway asks for is larger
ANSWER_BYTES_MAX = 64 << 20
#: a broker waits for what was asked so much longer before its silence is a fault
GRACE_SECONDS = 5.0
_SIZE = struct.Struct(">i")
_API_VERSIONS_VERSION = 3


class KafkaLink(asyncio.Protocol):
    """An open connection; made by `KafkaLink.open`."""

    def __init__(self, address: tuple[str, int], settings: ClientSettings) -> None:
        self.address = address
        self.settings = settings
        self._client_id = settings.client_id.encode()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: deque[tuple[int, bool, asyncio.Future[memoryview]]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._closed: str | None = None
        #: called once when the connection is gone
        self.on_closed: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self._closed else f"{len(self._waiting)} under way"
        return f"<KafkaLink {address_text(*self.address)} {state}>"

    @classmethod
    async def open(cls, host: str, port: int, settings: ClientSettings) -> "KafkaLink":
        """Connect, agree on versions, say who we are; raises LinkFault or AuthenticationFailed."""
        loop = asyncio.get_running_loop()
        link = cls((host, port), settings)
        tls = tls_context(settings) if settings.encrypted else None
        try:
            async with asyncio.timeout(settings.connection_timeout_ms / 1000):
                await loop.create_connection(
                    lambda: link, host, port, ssl=tls, server_hostname=host if tls else None
                )
                await link._agree_on_versions()
                if settings.authenticated:
                    await link._authenticate()
        except TimeoutError as fault:
            link.close("no answer in time")
            raise LinkFault(f"no connection to {address_text(host, port)}: no answer in time") from fault
        except OSError as fault:
            link.close("no connection")
            raise LinkFault(f"no connection to {address_text(host, port)}: {fault}") from fault
        except BaseException:
            link.close("not opened")
            raise
        return link

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def close(self, reason: str = "closed here") -> None:
        if self._closed is not None:
            return
        self._closed = reason
        if self._transport is not None:
            self._transport.abort() if self._waiting else self._transport.close()
        fault = LinkFault(f"{address_text(*self.address)}: {reason}")
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(fault)
                future.exception()  # whoever waits hears of it; nobody else has to
        self._waiting.clear()
        if self.on_closed is not None:
            self.on_closed()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        stream = transport.get_extra_info("socket")
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, fault: Exception | None) -> None:
        hint = "" if self._versions else " at the first request; does security.protocol fit this port?"
        self.close(f"the connection was lost: {fault}" if fault else f"it closed the connection{hint}")

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _SIZE.size:
            size = _SIZE.unpack_from(buffer)[0]
            if not CORRELATION_ID.size <= size <= ANSWER_BYTES_MAX:
                self.close(f"it announced an answer of {size} bytes; is this a Kafka port?")
                return
            end = _SIZE.size + size
            if len(buffer) < end:
                return
            frame = bytes(memoryview(buffer)[_SIZE.size : end])
            del buffer[:end]
            self._answered(memoryview(frame))

    def _answered(self, frame: memoryview) -> None:
        if self._closed is not None or not self._waiting:
            self.close("an answer came that nobody asked for")
            return
        correlation_id, flexible, future = self._waiting.popleft()
        try:
            if CORRELATION_ID.unpack_from(frame)[0] != correlation_id:
                raise MalformedAnswer("its answers are not in the order of the requests")
            body = response_body(frame, flexible)
        except MalformedAnswer as fault:
            self._waiting.appendleft((correlation_id, flexible, future))
            self.close(f"its answer cannot be read: {fault}")
            return
        if not future.done():
            future.set_result(body)

    # Requests

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

    def send(
        self, api_key: int, version: int, body: bytes | Sequence[bytes | memoryview]
    ) -> "asyncio.Future[memoryview]":
        """Send a request; the future is the body of its answer."""
        if self._closed is not None or self._transport is None:
            raise LinkFault(f"the link to {address_text(*self.address)} is gone: {self._closed}")
        pieces: Sequence[bytes | memoryview] = (body,) if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        prefix = frame_prefix(api_key, version, correlation_id, self._client_id, size)
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append((correlation_id, flexible_answer(api_key, version), future))
        self._transport.write(b"".join((prefix, *pieces)))
        return future

    async def answer(self, future: "asyncio.Future[memoryview]", timeout_ms: int | None = None) -> memoryview:
        """Wait for an answer; silence for too long ends the connection."""
        seconds = (timeout_ms or self.settings.request_timeout_ms) / 1000 + GRACE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as fault:
            self.close("no answer in time")
            raise LinkFault(f"{address_text(*self.address)}: no answer in time") from fault

    async def request(
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
        body = await self.answer(
            self.send(api_key, version, encode_request(api_key, version, fields)), timeout_ms
        )
        return self.decoded(api_key, version, body)

    def decoded(self, api_key: int, version: int, body: memoryview) -> Any:
        try:
            return decode_response(api_key, version, body)
        except MalformedAnswer as fault:
            reason = f"its answer to {api_name(api_key)} v{version} cannot be read: {fault}"
            self.close(reason)
            raise LinkFault(f"{address_text(*self.address)}: {reason}") from fault

    async def _agree_on_versions(self) -> None:
        from tidelog import __version__

        version = _API_VERSIONS_VERSION
        fields = {"client_software_name": "tidelog-gateway", "client_software_version": __version__}
        body = await self.send(API_VERSIONS, version, encode_request(API_VERSIONS, version, fields))
        answer = self.decoded(API_VERSIONS, version, body)
        if answer.error_code:
            raise Refusal(answer.error_code, "asking for the broker's versions")
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    async def _authenticate(self) -> None:
        mechanism = self.settings.sasl_mechanism
        answer = await self.request(SASL_HANDSHAKE, {"mechanism": mechanism}, lowest=1, highest=1)
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationFailed(f"sasl.mechanism {mechanism}: the broker offers {offered}")
        exchange = sasl.exchange(self.settings)
        token = next(exchange)
        while True:
            answer = await self.request(SASL_AUTHENTICATE, {"auth_bytes": token}, highest=2)
            if answer.error_code:
                reason = answer.error_message or ErrorCode(int(answer.error_code)).name
                raise AuthenticationFailed(f"{mechanism} as {self.settings.sasl_username!r}: {reason}")
            try:
                token = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                return

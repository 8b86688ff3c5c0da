"""One AMQP connection: the handshake, the login, heartbeats, channels, and closing in order.

client                        gateway
AMQP 0 0 9 1              →
                          ←   Connection.Start (PLAIN)
Connection.StartOk        →                          the cluster is asked whether user and password are so
                          ←   Connection.Tune        limits: channels, frame size, heartbeat
TuneOk, Connection.Open   →
                          ←   Connection.OpenOk
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from typing import Any

from pamqp import commands
from pamqp.base import Frame

from tidelog.client.faults import AuthenticationFailed, ClientFault, LinkFault
from tidelog.gateways.amqp import framing
from tidelog.gateways.amqp.channel import Channel
from tidelog.gateways.amqp.faults import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    AmqpFault,
    ChannelFault,
    ConnectionFault,
)
from tidelog.gateways.amqp.framing import FRAME_MIN, PROTOCOL_HEADER, Ack, FrameReader, Publish, RawFrame
from tidelog.gateways.amqp.gateway import Gateway, UserSession
from tidelog.gateways.amqp.topology import Topology, remove_queue

log = logging.getLogger(__name__)

VIRTUAL_HOST = "/"
_CLOSE_SECONDS = 2.0
_MECHANISMS = "PLAIN AMQPLAIN"
_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "per_consumer_qos": True,
    "authentication_failure_close": True,
}


class Connection(asyncio.Protocol):
    """Made by the listener for each client."""

    session: UserSession
    topology: Topology

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.id = f"{gateway.id}-{secrets.token_hex(8)}"
        self.user = ""
        self.authenticated = gateway.settings.authenticated
        self.knows_cancel = False
        self.last_queue = ""
        self.output_full = False
        #: bodies that wait for an earlier method of their channel, and those that are not whole yet
        self.waiting_bytes = 0
        self.incomplete_bytes = 0
        self.frame_max = gateway.limits.frame_bytes
        self.channels: dict[int, Channel] = {}
        #: channels that we closed, until the client agrees
        self._closed_channels: set[int] = set()
        self._channel_max = gateway.limits.channels
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._state = self._await_start_ok
        self._has_header = False
        self._logged_in = False
        self._closing = False
        self._over = False
        self._reading = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat = 0
        self._received = self._sent = False
        self._silent = 0
        self._pending: list[bytes] = []
        self._write_due = False

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.user} channels={len(self.channels)}>"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        gateway = self.gateway
        if gateway.connections >= gateway.limits.connections:
            gateway.metrics.connections_refused += 1
            self._over = True
            transport.abort()
            return
        gateway.connections += 1
        gateway.open_connections.add(self)
        stream = transport.get_extra_info("socket")
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=gateway.limits.output_bytes)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(gateway.limits.login_seconds, self._login_too_slow)

    def connection_lost(self, fault: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        self.output_full = True

    def resume_writing(self) -> None:
        self.output_full = False
        for channel in self.channels.values():
            channel.consumers_have_room()

    def data_received(self, data: bytes) -> None:
        self._received = True
        if self._over:
            return
        try:
            if not self._has_header:
                found = self._reader.protocol_header(data)
                if found is None:
                    return
                if found != PROTOCOL_HEADER:
                    # What is spoken here, then the end (AMQP 0-9-1, 4.2.2).
                    self.write(PROTOCOL_HEADER)
                    self._flush()
                    self._hang_up()
                    return
                self._has_header = True
                self._start()
                data = b""
            for raw in self._reader.feed(data):
                if self._over:
                    return
                self._frame(raw)
        except AmqpFault as fault:
            self.failed(None, fault)
        except Exception:
            log.exception("%r: a frame could not be served", self)
            self.failed(None, ConnectionFault(INTERNAL_ERROR, "the gateway failed"))
        self.output_changed()

    # Frames

    def _frame(self, raw: RawFrame) -> None:
        if raw.type == framing.HEARTBEAT:
            return
        if raw.channel == 0:
            if raw.type != framing.METHOD:
                raise ConnectionFault(COMMAND_INVALID, "channel 0 has no messages")
            method = framing.decode_method(raw)
            if isinstance(method, (Publish, Ack)):
                raise ConnectionFault(COMMAND_INVALID, "channel 0 has no messages")
            if method.name == "Connection.Close":
                self.write(framing.encode_method(0, commands.Connection.CloseOk()))
                self._flush()
                self._hang_up()
            elif method.name == "Connection.CloseOk" and self._closing:
                self._hang_up()
            elif not self._closing:
                self._state(method)
            return
        if self._closing:
            return
        if self._state != self._running:
            raise ConnectionFault(CHANNEL_ERROR, "the connection is not open yet")
        channel = self.channels.get(raw.channel)
        try:
            if raw.type == framing.METHOD:
                self._channel_method(raw, channel)
            elif channel is not None and raw.type == framing.HEADER:
                channel.content_header(framing.decode_header(raw))
            elif channel is not None:
                channel.content_body(raw.payload)
            elif raw.channel not in self._closed_channels:
                raise ConnectionFault(CHANNEL_ERROR, f"channel {raw.channel} is not open")
        except ChannelFault as fault:
            self.failed(channel, fault)

    def _channel_method(self, raw: RawFrame, channel: Channel | None) -> None:
        method = framing.decode_method(raw)
        if isinstance(method, Frame) and method.name.startswith("Channel."):
            if method.name == "Channel.Open":
                self._open_channel(raw.channel)
                return
            if method.name == "Channel.CloseOk":
                self._closed_channels.discard(raw.channel)
                return
            if method.name == "Channel.Close":
                if channel is not None:
                    del self.channels[raw.channel]
                    self._start_task(self._close_channel(channel, answer=True))
                elif raw.channel in self._closed_channels:
                    self.write(framing.encode_method(raw.channel, commands.Channel.CloseOk()))
                return
        if channel is not None:
            channel.method(method)
        elif raw.channel not in self._closed_channels:
            raise ConnectionFault(CHANNEL_ERROR, f"channel {raw.channel} is not open")

    def _open_channel(self, number: int) -> None:
        if number in self.channels or number in self._closed_channels:
            raise ConnectionFault(CHANNEL_ERROR, f"channel {number} is open already")
        if number > self._channel_max or len(self.channels) >= self._channel_max:
            raise ConnectionFault(NOT_ALLOWED, f"channel {number}: {self._channel_max} are allowed")
        self.channels[number] = Channel(self, number)
        self.write(framing.encode_method(number, commands.Channel.OpenOk()))

    async def _close_channel(self, channel: Channel, *, answer: bool) -> None:
        await channel.close()
        if answer:
            self.write(framing.encode_method(channel.number, commands.Channel.CloseOk()))

    # The handshake

    def _start(self) -> None:
        from tidelog import __version__

        properties: dict[str, Any] = {
            "product": "Tidelog",
            "version": __version__,
            "platform": "Python",
            "capabilities": dict(_CAPABILITIES),
        }
        start = commands.Connection.Start(0, 9, properties, _MECHANISMS, "en_US")
        self.write(framing.encode_method(0, start))

    def _await_start_ok(self, method: Frame) -> None:
        if method.name != "Connection.StartOk":
            raise ConnectionFault(COMMAND_INVALID, "Connection.StartOk was expected")
        user, password = _credentials(method)
        properties: Any = method["client_properties"]
        capabilities = properties.get("capabilities") if isinstance(properties, dict) else None
        self.knows_cancel = (
            isinstance(capabilities, dict) and capabilities.get("consumer_cancel_notify") is True
        )
        self._state = self._await_login
        self._start_task(self._login(user, password))

    def _await_login(self, method: Frame) -> None:
        raise ConnectionFault(COMMAND_INVALID, "nothing is sent before Connection.Tune")

    async def _login(self, user: str, password: str) -> None:
        try:
            session = await self.gateway.login(user, password)
        except AuthenticationFailed as fault:
            self.gateway.metrics.logins_failed += 1
            log.info("login of %s refused: %s", user, fault)
            raise ConnectionFault(ACCESS_REFUSED, f"login of '{user}' refused by the cluster") from fault
        except LinkFault as fault:
            raise ConnectionFault(RESOURCE_ERROR, f"the cluster cannot be reached: {fault}") from fault
        if self._over:
            await self.gateway.logout(session)
            return
        self.session, self.user = session, user
        self._logged_in = True
        self.gateway.metrics.connections_opened += 1
        self.topology = Topology(self.gateway, session, self.id)
        limits = self.gateway.limits
        tune = commands.Connection.Tune(limits.channels, limits.frame_bytes, limits.heartbeat_seconds)
        self._state = self._await_tune_ok
        self.write(framing.encode_method(0, tune))

    def _await_tune_ok(self, method: Frame) -> None:
        if method.name != "Connection.TuneOk":
            raise ConnectionFault(COMMAND_INVALID, "Connection.TuneOk was expected")
        limits = self.gateway.limits
        channel_max, frame_max, heartbeat = (
            int(str(method[name])) for name in ("channel_max", "frame_max", "heartbeat")
        )
        if channel_max > limits.channels or frame_max > limits.frame_bytes:
            raise ConnectionFault(NOT_ALLOWED, "more was chosen than was offered")
        if frame_max and frame_max < FRAME_MIN:
            raise ConnectionFault(NOT_ALLOWED, f"frames have at least {FRAME_MIN} bytes")
        self._channel_max = channel_max or limits.channels
        self.frame_max = frame_max or limits.frame_bytes
        self._reader.frame_max = self.frame_max
        self._heartbeat = heartbeat
        self._state = self._await_open

    def _await_open(self, method: Frame) -> None:
        if method.name != "Connection.Open":
            raise ConnectionFault(COMMAND_INVALID, "Connection.Open was expected")
        if method["virtual_host"] != VIRTUAL_HOST:
            raise ConnectionFault(NOT_ALLOWED, f"there is one virtual host, '{VIRTUAL_HOST}'")
        self._state = self._running
        self.write(framing.encode_method(0, commands.Connection.OpenOk()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat:
            self._beat()

    def _running(self, method: Frame) -> None:
        if method.name != "Connection.UpdateSecretOk":
            raise ConnectionFault(COMMAND_INVALID, f"{method.name} was not expected")

    def _login_too_slow(self) -> None:
        if self._state != self._running:
            self._hang_up()

    # Heartbeats

    def _beat(self) -> None:
        """Twice in each interval: say something if nothing was said, and note whether anything came."""
        if self._over:
            return
        if not self._sent:
            self.write(framing.HEARTBEAT_FRAME)
        self._sent = False
        # A client is not heard while it is not read.
        self._silent = 0 if self._received or not self._reading else self._silent + 1
        self._received = False
        if self._silent > 4:
            log.info("%r: nothing came for two heartbeats", self)
            self._abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._heartbeat / 2, self._beat)

    # Out

    def write(self, data: bytes) -> None:
        """Queue bytes; all of one turn of the loop go out together."""
        self._pending.append(data)
        if not self._write_due:
            self._write_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def write_content(self, channel: int, properties: bytes, body: bytes) -> None:
        self._pending += framing.encode_content(channel, properties, body, self.frame_max)
        if not self._write_due:
            self._write_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._write_due = False
        pending, self._pending = self._pending, []
        if pending and self._transport is not None and not self._transport.is_closing():
            self._sent = True
            self._transport.write(b"".join(pending))

    def output_changed(self) -> None:
        """Read on, or no more for now: by what is not written to the cluster yet."""
        if self._transport is None or self._transport.is_closing() or not self._logged_in:
            return
        full = self.session.full or self.waiting_bytes > self.gateway.limits.unconfirmed_bytes
        if full and self._reading:
            self._reading = False
            self.session.paused.add(self)
            self._transport.pause_reading()
        elif not full and not self._reading:
            self._reading = True
            self.session.paused.discard(self)
            self._transport.resume_reading()

    def queue_name(self, name: str) -> str:
        """The queue that is meant: without a name the one declared last."""
        found = name or self.last_queue
        if not found:
            raise ChannelFault(NOT_FOUND, "no queue was declared yet")
        return found

    # Faults and the end

    def failed(self, channel: Channel | None, fault: AmqpFault) -> None:
        """Close the channel, or the connection, and say why."""
        if self._over or self._closing:
            return
        if isinstance(fault, ChannelFault) and channel is not None:
            self.gateway.metrics.channel_errors += 1
            if self.channels.pop(channel.number, None) is not None:
                self._closed_channels.add(channel.number)
                close = commands.Channel.Close(fault.code, fault.text, 0, 0)
                self.write(framing.encode_method(channel.number, close))
                self._start_task(self._close_channel(channel, answer=False))
            return
        self.gateway.metrics.protocol_errors += 1
        log.info("%r: %s", self, fault.text)
        self.close(fault.code, fault.text)

    def close(
        self, code: int = CONNECTION_FORCED, text: str = "CONNECTION_FORCED - the gateway stops"
    ) -> None:
        """Tell the client that this is the end, and wait a little for its answer."""
        if self._closing or self._over:
            return
        self._closing = True
        if not self._has_header:
            self._hang_up()
            return
        self.write(framing.encode_method(0, commands.Connection.Close(code, text, 0, 0)))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._abort)

    def _hang_up(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _start_task(self, work: Any) -> None:
        async def run() -> None:
            try:
                await work
            except AmqpFault as fault:
                self.failed(None, fault)
            except ClientFault as fault:
                self.failed(None, ConnectionFault(RESOURCE_ERROR, str(fault)))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        """The connection is gone: what it held goes back, once."""
        if self._over:
            return
        self._over = True
        self.gateway.connections -= 1
        self.gateway.open_connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.gateway.background(self._clean_up())

    async def _clean_up(self) -> None:
        for channel in list(self.channels.values()):
            await channel.close()
        self.channels.clear()
        if not self._logged_in:
            return
        self.session.paused.discard(self)
        for queue in [each for each in self.gateway.definitions.queues.values() if each.owner == self.id]:
            try:
                await remove_queue(self.gateway, self.session, queue)
            except (ClientFault, TimeoutError) as fault:
                log.warning("the exclusive queue %s was not deleted: %s", queue.name, fault)
        await self.gateway.logout(self.session)


def _credentials(method: Frame) -> tuple[str, str]:
    """User and password of a StartOk; raises ConnectionFault."""
    response: Any = method["response"]
    data = response.encode() if isinstance(response, str) else bytes(response or b"")
    try:
        if method["mechanism"] == "PLAIN":
            _, user, password = data.decode().split("\0")
            return user, password
        if method["mechanism"] == "AMQPLAIN":
            from pamqp import decode

            table: Any = decode.field_table(len(data).to_bytes(4, "big") + data)[1]
            return str(table["LOGIN"]), str(table["PASSWORD"])
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as fault:
        raise ConnectionFault(SYNTAX_ERROR, "user and password cannot be read") from fault
    raise ConnectionFault(ACCESS_REFUSED, f"mechanisms are {_MECHANISMS}")

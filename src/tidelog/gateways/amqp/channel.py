"""One channel: publishing with confirms, consuming with acknowledgements, and what declares and binds.

Methods of a channel are served in their order. Those that need nothing of the cluster are served where they
are read; one that does is a task, and what comes behind it waits for it.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from tidelog.client.faults import ClientFault, Refusal
from tidelog.gateways.amqp import framing
from tidelog.gateways.amqp.channel_consumer import ChannelConsumer
from tidelog.gateways.amqp.definitions import TO_EXCHANGE, TO_QUEUE, Binding, Exchange, Queue
from tidelog.gateways.amqp.delivered_properties import Delivered, delivered
from tidelog.gateways.amqp.faults import (
    ACCESS_REFUSED,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    REPLY_NAMES,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    AmqpFault,
    ChannelFault,
    ConnectionFault,
    from_client_fault,
)
from tidelog.gateways.amqp.framing import Ack, Publish
from tidelog.gateways.amqp.messages import BadMessage, Message, to_record
from tidelog.gateways.amqp.queue_reader import Delivery, body_bytes
from tidelog.gateways.amqp.routing import route
from tidelog.gateways.amqp.share_member import ACCEPT, REJECT, RELEASE
from tidelog.gateways.amqp.topology import checked_arguments, remove_queue
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.gateways.amqp.connection import Connection

log = logging.getLogger(__name__)

_WITHOUT_RIGHTS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
Work = Coroutine[Any, Any, None]


class Channel:
    """An open channel of a connection."""

    def __init__(self, connection: "Connection", number: int) -> None:
        self.connection = connection
        self.number = number
        self.gateway = connection.gateway
        self.topology = connection.topology
        self.closing = False
        self.flow = True
        #: prefetch counts: for consumers that come, and of the whole channel
        self.prefetch = 0
        self.prefetch_together = 0
        self.consumers: dict[str, ChannelConsumer] = {}
        self.unacknowledged: dict[int, tuple[Delivery, ChannelConsumer | None]] = {}
        self._delivery_tag = 0
        self._confirms = False
        self._publish_tag = 0
        #: published, with how many records that are not written yet
        self._unconfirmed: dict[int, int] = {}
        self._confirmed: list[int] = []
        self._refused: set[int] = set()
        self._flush_due = False
        self._publish: Publish | None = None
        self._content: ContentHeader | None = None
        self._body: list[bytes] = []
        self._body_left = 0
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[Frame | Publish | Ack | tuple[Publish, Message]] = deque()

    def __repr__(self) -> str:
        return f"<Channel {self.number} consumers={len(self.consumers)} out={len(self.unacknowledged)}>"

    def send(self, method: Frame) -> None:
        self.connection.write(framing.encode_method(self.number, method))

    # Frames in

    def method(self, method: "Frame | Publish | Ack") -> None:
        """A method of the client; raises AmqpFault."""
        if self._publish is not None:
            raise ConnectionFault(UNEXPECTED_FRAME, "the content of a message was expected")
        if isinstance(method, Publish):
            self._publish = method
        else:
            self._in_turn(method)

    def content_header(self, content: ContentHeader) -> None:
        if self._publish is None or self._content is not None:
            raise ConnectionFault(UNEXPECTED_FRAME, "properties of no message")
        if content.body_size > self.gateway.limits.message_bytes:
            self._publish = None
            raise ChannelFault(
                PRECONDITION_FAILED,
                f"a message of {content.body_size} bytes is larger than {self.gateway.limits.message_bytes}",
            )
        self._content, self._body, self._body_left = content, [], content.body_size
        self.connection.incomplete_bytes += content.body_size
        if self.connection.incomplete_bytes > self.gateway.limits.incomplete_bytes:
            raise ConnectionFault(RESOURCE_ERROR, "too many messages are begun and not ended")
        if not self._body_left:
            self._content_whole()

    def content_body(self, data: bytes) -> None:
        if self._content is None:
            raise ConnectionFault(UNEXPECTED_FRAME, "a body of no message")
        self._body_left -= len(data)
        if self._body_left < 0:
            raise ConnectionFault(UNEXPECTED_FRAME, "a body is longer than was said")
        self._body.append(data)
        if not self._body_left:
            self._content_whole()

    def _content_whole(self) -> None:
        publish, content = self._publish, self._content
        assert publish is not None and content is not None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._publish = self._content = None
        self._body = []
        self.connection.incomplete_bytes -= content.body_size
        self._in_turn((publish, Message(publish.exchange, publish.routing_key, content.properties, body)))

    def _in_turn(self, what: "Frame | Ack | Publish | tuple[Publish, Message]") -> None:
        if self._task is not None:
            self._waiting.append(what)
            self.connection.waiting_bytes += _body_bytes(what)
            if len(self._waiting) > self.gateway.limits.waiting_frames:
                raise ConnectionFault(RESOURCE_ERROR, "too much was sent without waiting for answers")
            return
        work = self._serve(what)
        if work is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(work))

    def _serve(self, what: "Frame | Ack | Publish | tuple[Publish, Message]") -> Work | None:
        if isinstance(what, tuple) and not isinstance(what, (Publish, Ack)):
            self._published(*what)
            return None
        if isinstance(what, Ack):
            self._settle(what.delivery_tag, what.multiple, ACCEPT)
            return None
        assert isinstance(what, Frame)
        serve = _METHODS.get(what.name)
        if serve is None:
            raise ConnectionFault(NOT_IMPLEMENTED, f"{what.name} is not served")
        work: Work | None = serve(self, what)
        return work

    async def _run(self, work: Work) -> None:
        """Serve a method that takes time, then what has come meanwhile."""
        try:
            while True:
                await work
                following: Work | None = None
                while self._waiting and following is None and not self.closing:
                    what = self._waiting.popleft()
                    self.connection.waiting_bytes -= _body_bytes(what)
                    following = self._serve(what)
                if following is None:
                    return
                work = following
        except AmqpFault as fault:
            self.connection.failed(self, fault)
        except ClientFault as fault:
            self.connection.failed(self, from_client_fault(fault))
        except TimeoutError:
            self.connection.failed(self, ChannelFault(RESOURCE_ERROR, "the cluster did not answer in time"))
        finally:
            self._task = None
            self.connection.output_changed()

    # Publishing

    def _published(self, publish: Publish, message: Message) -> None:
        tag = 0
        if self._confirms:
            self._publish_tag += 1
            tag = self._publish_tag
        metrics = self.gateway.metrics
        metrics.published += 1
        metrics.published_bytes += len(message.body)
        if publish.immediate:
            raise ConnectionFault(NOT_IMPLEMENTED, "immediate is not served")
        exchange = self.topology.exchange(message.exchange)
        if exchange.internal:
            raise ChannelFault(ACCESS_REFUSED, f"exchange '{exchange.name}' is internal")
        user_id = message.properties.user_id
        if user_id and self.connection.authenticated and user_id != self.connection.user:
            raise ChannelFault(PRECONDITION_FAILED, "user_id is not the user who is logged in")
        queues = route(self.gateway.definitions, exchange, message.routing_key, message.headers)
        if not queues:
            metrics.unroutable += 1
            if publish.mandatory:
                self._return(message)
            if tag:
                self._confirmed.append(tag)
                self._flush_soon()
            return
        try:
            record = to_record(message, int(time.time() * 1000))
        except BadMessage as fault:
            raise ChannelFault(PRECONDITION_FAILED, str(fault)) from fault
        if tag:
            self._unconfirmed[tag] = len(queues)
        writer = self.connection.session.writer
        begun = time.monotonic()

        def written(result: ClientFault | int) -> None:
            if not isinstance(result, ClientFault):
                metrics.write_latency.observe(time.monotonic() - begun)
            self._written(tag, result)

        for queue in queues:
            writer.write(queue.topic, record, written)

    def _return(self, message: Message) -> None:
        self.send(
            commands.Basic.Return(NO_ROUTE, REPLY_NAMES[NO_ROUTE], message.exchange, message.routing_key)
        )
        self.connection.write_content(self.number, message.properties.marshal(), message.body)

    def _written(self, tag: int, result: "ClientFault | int") -> None:
        metrics = self.gateway.metrics
        if isinstance(result, ClientFault):
            metrics.publish_failed += 1
            log.info("%r: not written: %s", self.connection, result)
            if isinstance(result, Refusal) and result.code in _WITHOUT_RIGHTS and not self.closing:
                self.connection.failed(self, from_client_fault(result))
        else:
            metrics.confirmed += 1
        if tag and not self.closing:
            if isinstance(result, ClientFault):
                self._refused.add(tag)
            left = self._unconfirmed.get(tag, 1) - 1
            if left:
                self._unconfirmed[tag] = left
            else:
                self._unconfirmed.pop(tag, None)
                self._confirmed.append(tag)
            self._flush_soon()
        self.connection.session.written()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._confirm)

    def _confirm(self) -> None:
        """One answer for all tags in a row, one for each beyond."""
        self._flush_due = False
        if self.closing or not self._confirmed:
            return
        confirmed, self._confirmed = sorted(self._confirmed), []
        lowest = next(iter(self._unconfirmed), self._publish_tag + 1)
        if self._refused:
            for tag in [tag for tag in confirmed if tag in self._refused]:
                self._refused.discard(tag)
                confirmed.remove(tag)
                self.send(commands.Basic.Nack(tag, False, False))
        together = [tag for tag in confirmed if tag < lowest]
        pieces = []
        if together:
            pieces.append(framing.encode_ack(self.number, together[-1], len(together) > 1))
        pieces += [framing.encode_ack(self.number, tag, False) for tag in confirmed[len(together) :]]
        if pieces:
            self.connection.write(b"".join(pieces))

    # Deliveries

    def deliver(self, consumer: ChannelConsumer, delivery: Delivery) -> None:
        """Send a delivery to the client."""
        tag = self._keep(delivery, consumer)
        exchange, routing_key, properties = self._delivered(delivery)
        again = delivery.deliveries > 1
        self.connection.write(
            framing.encode_deliver(self.number, consumer.written_tag, tag, again, exchange, routing_key)
        )
        self.connection.write_content(self.number, properties, delivery.record.value or b"")
        if consumer.no_ack:
            delivery.settle(ACCEPT)
        else:
            delivery.sent()

    def _keep(self, delivery: Delivery, consumer: ChannelConsumer | None) -> int:
        self._delivery_tag += 1
        if consumer is None or not consumer.no_ack:
            self.unacknowledged[self._delivery_tag] = (delivery, consumer)
            if consumer is not None:
                consumer.out += 1
        metrics = self.gateway.metrics
        metrics.delivered += 1
        metrics.delivered_bytes += body_bytes(delivery.record)
        metrics.redelivered += delivery.deliveries > 1
        return self._delivery_tag

    def _delivered(self, delivery: Delivery) -> Delivered:
        room = self.connection.frame_max - framing.CONTENT_OVERHEAD
        return delivered(delivery.record, delivery.reader.queue.topic, delivery.deliveries, room)

    def _settle(self, tag: int, multiple: bool, kind: int) -> None:
        unacknowledged = self.unacknowledged
        if multiple:
            tags = [each for each in unacknowledged if tag == 0 or each <= tag]
            if not tags and tag > self._delivery_tag:
                raise ChannelFault(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        else:
            if tag not in unacknowledged:
                raise ChannelFault(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            tags = [tag]
        self._settle_all(tags, kind)

    def _settle_all(self, tags: list[int], kind: int) -> None:
        metrics = self.gateway.metrics
        if kind == ACCEPT:
            metrics.acknowledged += len(tags)
        elif kind == REJECT:
            metrics.rejected += len(tags)
        else:
            metrics.requeued += len(tags)
        for tag in tags:
            delivery, consumer = self.unacknowledged.pop(tag)
            if consumer is not None:
                consumer.out -= 1
            delivery.settle(kind)
        if self.prefetch_together:
            self.consumers_have_room()

    def consumers_have_room(self) -> None:
        for consumer in self.consumers.values():
            consumer.reader.woken()

    def _ack(self, method: Any) -> None:
        self._settle(method.delivery_tag, method.multiple, ACCEPT)

    def _nack(self, method: Any) -> None:
        self._settle(method.delivery_tag, method.multiple, RELEASE if method.requeue else REJECT)

    def _reject(self, method: Any) -> None:
        self._settle(method.delivery_tag, False, RELEASE if method.requeue else REJECT)

    def _recover(self, method: Any) -> None:
        if not method.requeue:
            raise ConnectionFault(NOT_IMPLEMENTED, "basic.recover without requeue is not served")
        self._settle_all(list(self.unacknowledged), RELEASE)
        if method.name == "Basic.Recover":
            self.send(commands.Basic.RecoverOk())

    def _qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise ConnectionFault(NOT_IMPLEMENTED, "a prefetch size in bytes is not served")
        if method.global_:
            self.prefetch_together = method.prefetch_count
        else:
            self.prefetch = method.prefetch_count
            for consumer in self.consumers.values():
                consumer.prefetch = method.prefetch_count
        self.send(commands.Basic.QosOk())
        self.consumers_have_room()

    async def _consume(self, method: Any) -> None:
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consumers:
            raise ConnectionFault(NOT_ALLOWED, f"the consumer tag '{tag}' is in use")
        if len(self.consumers) >= self.gateway.limits.consumers_per_channel:
            raise ChannelFault(RESOURCE_ERROR, "the channel has as many consumers as it may have")
        queue = self.topology.queue(self.connection.queue_name(method.queue))
        others = [each for reader in self.gateway.readers_of(queue.name) for each in reader.consumers]
        if others and (method.exclusive or any(getattr(each, "exclusive", False) for each in others)):
            raise ChannelFault(ACCESS_REFUSED, f"queue '{queue.name}' has a consumer, and one is exclusive")
        reader = await self.connection.session.reader(queue)
        if self.closing:
            return
        consumer = ChannelConsumer(
            self, tag, reader, no_ack=bool(method.no_ack), exclusive=bool(method.exclusive)
        )
        self.consumers[tag] = consumer
        if not method.nowait:
            self.send(commands.Basic.ConsumeOk(tag))
        reader.add(consumer)

    async def _cancel(self, method: Any) -> None:
        consumer = self.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            consumer.reader.remove(consumer)
        if not method.nowait:
            self.send(commands.Basic.CancelOk(method.consumer_tag))
        if consumer is not None:
            await self._consumer_left(consumer.reader.queue)

    async def _consumer_left(self, queue: Queue) -> None:
        """A queue that deletes itself goes with its last consumer, here and at other gateways."""
        gateway, session = self.gateway, self.connection.session
        if not queue.auto_delete or gateway.definitions.queues.get(queue.name) != queue:
            return
        if gateway.consumers_of(queue.name):
            return
        ours = len(gateway.readers_of(queue.name))
        if await session.access.members(queue.group) <= ours:
            await remove_queue(gateway, session, queue)

    def cancelled_by_queue(self, consumer: ChannelConsumer) -> None:
        known = self.consumers.pop(consumer.tag, None) is not None and not consumer.knows_the_end
        if known and not self.closing and self.connection.knows_cancel:
            self.send(commands.Basic.Cancel(consumer.tag, True))

    async def _get(self, method: Any) -> None:
        queue = self.topology.queue(self.connection.queue_name(method.queue))
        if len(self.unacknowledged) >= self.gateway.limits.unacknowledged_per_channel:
            raise ChannelFault(RESOURCE_ERROR, "too many deliveries are not acknowledged")
        reader = await self.connection.session.reader(queue)
        delivery = await reader.get()
        if delivery is None:
            self.send(commands.Basic.GetEmpty())
            return
        if self.closing:
            delivery.settle(RELEASE)
            return
        tag = self._keep(delivery, None)
        exchange, routing_key, properties = self._delivered(delivery)
        again = delivery.deliveries > 1
        self.send(commands.Basic.GetOk(tag, again, exchange, routing_key, len(reader)))
        self.connection.write_content(self.number, properties, delivery.record.value or b"")
        if method.no_ack:
            self._settle(tag, False, ACCEPT)

    # What is declared

    def _confirm_select(self, method: Any) -> None:
        self._confirms = True
        if not method.nowait:
            self.send(commands.Confirm.SelectOk())

    def _flow(self, method: Any) -> None:
        self.flow = bool(method.active)
        self.send(commands.Channel.FlowOk(self.flow))
        self.consumers_have_room()

    async def _declare_exchange(self, method: Any) -> None:
        if method.passive:
            self.topology.exchange(method.exchange)
        else:
            arguments = checked_arguments(method.arguments)
            await self.topology.declare_exchange(
                Exchange(
                    method.exchange,
                    method.exchange_type,
                    bool(method.auto_delete),
                    bool(method.internal),
                    bool(method.durable),
                    arguments,
                )
            )
        if not method.nowait:
            self.send(commands.Exchange.DeclareOk())

    async def _delete_exchange(self, method: Any) -> None:
        await self.topology.delete_exchange(method.exchange, if_unused=bool(method.if_unused))
        if not method.nowait:
            self.send(commands.Exchange.DeleteOk())

    async def _bind_exchange(self, method: Any) -> None:
        await self.topology.bind(self._exchange_binding(method))
        if not method.nowait:
            self.send(commands.Exchange.BindOk())

    async def _unbind_exchange(self, method: Any) -> None:
        await self.topology.unbind(self._exchange_binding(method))
        if not method.nowait:
            self.send(commands.Exchange.UnbindOk())

    def _exchange_binding(self, method: Any) -> Binding:
        arguments = checked_arguments(method.arguments)
        return Binding(method.source, TO_EXCHANGE, method.destination, method.routing_key, arguments)

    async def _declare_queue(self, method: Any) -> None:
        name = method.queue
        if method.passive:
            name = self.connection.queue_name(name)
            messages, consumers = await self.topology.look_at(name)
        else:
            name = name or f"amq.gen-{secrets.token_urlsafe(16)}"
            if name.startswith("amq.") and method.queue:
                raise ChannelFault(ACCESS_REFUSED, f"the name '{name}' is reserved")
            arguments = checked_arguments(method.arguments)
            wanted = Queue(
                name,
                "",
                "",
                durable=bool(method.durable),
                auto_delete=bool(method.auto_delete),
                exclusive=bool(method.exclusive),
                owner=self.connection.id if method.exclusive else "",
                gateway=self.gateway.id if method.exclusive and self.gateway.leased else "",
                arguments=arguments,
            )
            messages, consumers = await self.topology.declare_queue(name, wanted)
        self.connection.last_queue = name
        if not method.nowait:
            self.send(commands.Queue.DeclareOk(name, messages, consumers))

    def _queue_binding(self, method: Any) -> Binding:
        queue = self.connection.queue_name(method.queue)
        routing_key = method.routing_key
        if not method.queue and not routing_key:
            routing_key = queue
        return Binding(method.exchange, TO_QUEUE, queue, routing_key, checked_arguments(method.arguments))

    async def _bind_queue(self, method: Any) -> None:
        await self.topology.bind(self._queue_binding(method))
        if not method.nowait:
            self.send(commands.Queue.BindOk())

    async def _unbind_queue(self, method: Any) -> None:
        await self.topology.unbind(self._queue_binding(method))
        self.send(commands.Queue.UnbindOk())

    async def _purge_queue(self, method: Any) -> None:
        purged = await self.topology.purge(self.connection.queue_name(method.queue))
        if not method.nowait:
            self.send(commands.Queue.PurgeOk(purged))

    async def _delete_queue(self, method: Any) -> None:
        name = self.connection.queue_name(method.queue)
        ours = [each for each in self.consumers.values() if each.reader.queue.name == name]
        for consumer in ours:
            consumer.knows_the_end = True
        try:
            deleted = await self.topology.delete_queue(
                name, if_unused=bool(method.if_unused), if_empty=bool(method.if_empty)
            )
        finally:
            for consumer in ours:
                consumer.knows_the_end = False
        if not method.nowait:
            self.send(commands.Queue.DeleteOk(deleted))

    # The end

    async def close(self) -> None:
        """Give everything back; the client hears no more of the channel."""
        if self.closing:
            return
        self.closing = True
        self.connection.waiting_bytes -= sum(map(_body_bytes, self._waiting))
        self._waiting.clear()
        if self._content is not None:
            self.connection.incomplete_bytes -= self._content.body_size
        consumers = list(self.consumers.values())
        self.consumers.clear()
        for consumer in consumers:
            consumer.reader.remove(consumer)
        self._settle_all(list(self.unacknowledged), RELEASE)
        for consumer in consumers:
            try:
                await self._consumer_left(consumer.reader.queue)
            except (ClientFault, TimeoutError) as fault:
                log.info("queue %s stays: %s", consumer.reader.queue.name, fault)


def _body_bytes(what: "Frame | Publish | Ack | tuple[Publish, Message]") -> int:
    """What a method that waits takes, beside the little that all take."""
    return len(what[1].body) if isinstance(what, tuple) and isinstance(what[1], Message) else 0


_METHODS: dict[str, Any] = {
    "Channel.Flow": Channel._flow,
    "Channel.FlowOk": lambda channel, method: None,
    "Confirm.Select": Channel._confirm_select,
    "Exchange.Declare": Channel._declare_exchange,
    "Exchange.Delete": Channel._delete_exchange,
    "Exchange.Bind": Channel._bind_exchange,
    "Exchange.Unbind": Channel._unbind_exchange,
    "Queue.Declare": Channel._declare_queue,
    "Queue.Bind": Channel._bind_queue,
    "Queue.Unbind": Channel._unbind_queue,
    "Queue.Purge": Channel._purge_queue,
    "Queue.Delete": Channel._delete_queue,
    "Basic.Qos": Channel._qos,
    "Basic.Consume": Channel._consume,
    "Basic.Cancel": Channel._cancel,
    "Basic.CancelOk": lambda channel, method: None,
    "Basic.Get": Channel._get,
    "Basic.Ack": Channel._ack,
    "Basic.Nack": Channel._nack,
    "Basic.Reject": Channel._reject,
    "Basic.Recover": Channel._recover,
    "Basic.RecoverAsync": Channel._recover,
}

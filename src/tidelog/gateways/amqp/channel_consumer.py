"""A consumer of a channel, as the reader of its queue knows it."""

from typing import TYPE_CHECKING

from tidelog.gateways.amqp import framing
from tidelog.gateways.amqp.queue_reader import Delivery, QueueReader

if TYPE_CHECKING:
    from tidelog.gateways.amqp.channel import Channel


class ChannelConsumer:
    """Takes deliveries as far as prefetch counts, flow and the client's reading allow."""

    def __init__(
        self, channel: "Channel", tag: str, reader: QueueReader, *, no_ack: bool, exclusive: bool
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.written_tag = framing.short(tag)
        self.reader = reader
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = channel.prefetch
        #: deliveries that are not acknowledged
        self.out = 0
        #: its own channel deletes the queue, and need not be told
        self.knows_the_end = False

    def __repr__(self) -> str:
        return f"<ChannelConsumer {self.tag} of {self.reader.queue.name} out={self.out}>"

    def room(self) -> int:
        channel = self.channel
        if channel.closing or not channel.flow or channel.connection.output_full:
            return 0
        unlimited = channel.gateway.limits.unlimited_prefetch
        if self.no_ack:
            return unlimited
        room = (self.prefetch or unlimited) - self.out
        if channel.prefetch_together:
            room = min(room, channel.prefetch_together - len(channel.unacknowledged))
        return max(room, 0)

    def deliver(self, delivery: Delivery) -> None:
        self.channel.deliver(self, delivery)

    def cancelled(self) -> None:
        self.channel.cancelled_by_queue(self)

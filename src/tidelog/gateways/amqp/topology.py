"""Declaring, binding, purging and deleting, as one user on one connection.

A queue is made in this order: the settings of its share group, its topic, its definition; and it goes in the
other. Whatever the cluster refuses the user is refused here, before anything is defined.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidelog.client.faults import ClientFault
from tidelog.gateways.amqp.definitions import (
    BUILT_IN,
    EXCHANGE_TYPES,
    GROUP_PREFIX,
    TO_EXCHANGE,
    TO_QUEUE,
    Binding,
    Exchange,
    Queue,
    binding_record,
    exchange_record,
    queue_record,
    topic_name,
)
from tidelog.gateways.amqp.faults import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    ChannelFault,
    ConnectionFault,
)
from tidelog.gateways.amqp.gateway import Gateway, UserSession
from tidelog.gateways.amqp.messages import TTL_MS_MAX
from tidelog.gateways.amqp.queue_reader import DELIVERIES_MAX
from tidelog.gateways.amqp.routing import WORDS_MAX
from tidelog.gateways.amqp.share_member import ACCEPT, RELEASE

log = logging.getLogger(__name__)

#: arguments of queues that would change what a queue does, and are not served
NOT_SERVED = (
    *("x-max-length", "x-max-length-bytes", "x-overflow", "x-single-active-consumer"),
    *("x-max-in-memory-length", "x-dead-letter-strategy"),
)
QUEUE_TYPES = ("classic", "quorum")
#: arguments of our own: an existing topic, its share group, and what a topic that is made gets
TOPIC_ARGUMENT, GROUP_ARGUMENT = "x-tidelog-topic", "x-tidelog-group"
PARTITIONS_ARGUMENT, START_ARGUMENT, RETENTION_ARGUMENT = (
    "x-tidelog-partitions",
    "x-tidelog-start",
    "x-tidelog-retention-ms",
)
STARTS = ("earliest", "latest")
_NUMBERS = {
    "x-message-ttl": (0, TTL_MS_MAX),
    "x-expires": (1, TTL_MS_MAX),
    "x-max-priority": (0, 255),
    "x-delivery-limit": (0, 1_000_000),
    PARTITIONS_ARGUMENT: (1, 1_000),
    RETENTION_ARGUMENT: (-1, 2**62),
}
_TEXTS = ("x-dead-letter-exchange", "x-dead-letter-routing-key", TOPIC_ARGUMENT, GROUP_ARGUMENT)
_LOCK_MS = "60000"
_PURGE_SECONDS_MAX = 30.0


class Topology:
    """What one connection may change of what exists."""

    def __init__(self, gateway: Gateway, session: UserSession, connection_id: str) -> None:
        self.gateway = gateway
        self.session = session
        self.connection_id = connection_id

    # What is there

    def exchange(self, name: str) -> Exchange:
        found = self.gateway.definitions.exchanges.get(name)
        if found is None:
            raise ChannelFault(NOT_FOUND, f"no exchange '{name}'")
        return found

    def queue(self, name: str) -> Queue:
        """A queue that this connection may use."""
        found = self.gateway.definitions.queues.get(name)
        if found is None:
            raise ChannelFault(NOT_FOUND, f"no queue '{name}'")
        if found.exclusive and found.owner != self.connection_id:
            raise ChannelFault(RESOURCE_LOCKED, f"queue '{name}' is exclusive to another connection")
        return found

    async def _define(self, key: bytes, value: bytes | None) -> None:
        await self.gateway.log.define(self.session.writer, key, value)

    # Exchanges

    async def declare_exchange(self, wanted: Exchange) -> None:
        known = self.gateway.definitions.exchanges.get(wanted.name)
        if wanted.type not in EXCHANGE_TYPES:
            raise ConnectionFault(
                COMMAND_INVALID, f"exchange type '{wanted.type}'; there are {', '.join(EXCHANGE_TYPES)}"
            )
        if known is not None:
            if known.name in BUILT_IN:
                wanted = replace(wanted, durable=known.durable)
            if known != wanted:
                raise ChannelFault(
                    PRECONDITION_FAILED, f"exchange '{wanted.name}' is there with {_of(known)}"
                )
            return
        if wanted.name == "" or wanted.name.startswith("amq."):
            raise ChannelFault(ACCESS_REFUSED, f"the name '{wanted.name}' is reserved")
        if len(self.gateway.definitions.exchanges) >= self.gateway.limits.exchanges:
            raise ChannelFault(RESOURCE_ERROR, "there are as many exchanges as there may be")
        await self._define(*exchange_record(wanted))

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        if name in BUILT_IN:
            raise ChannelFault(ACCESS_REFUSED, f"exchange '{name}' cannot be deleted")
        definitions = self.gateway.definitions
        if name not in definitions.exchanges:
            return  # as in RabbitMQ
        bindings = list(definitions.bindings.get(name, {}).values())
        if if_unused and bindings:
            raise ChannelFault(PRECONDITION_FAILED, f"exchange '{name}' is in use")
        for binding in (*bindings, *definitions.bindings_of(TO_EXCHANGE, name)):
            await self._define(binding.key.encode(), None)
        await self._define(f"exchange/{name}".encode(), None)

    # Bindings

    async def bind(self, binding: Binding) -> None:
        definitions = self.gateway.definitions
        if binding.exchange == "":
            raise ChannelFault(ACCESS_REFUSED, "nothing is bound to the default exchange")
        self.exchange(binding.exchange)
        if binding.kind == TO_QUEUE:
            self.queue(binding.destination)
        else:
            self.exchange(binding.destination)
        if binding.routing_key.count(".") >= WORDS_MAX:
            raise ChannelFault(PRECONDITION_FAILED, f"a routing key has more than {WORDS_MAX} words")
        known = definitions.bindings.get(binding.exchange, {})
        if binding.key in known:
            return
        if len(known) >= self.gateway.limits.bindings_per_exchange:
            raise ChannelFault(RESOURCE_ERROR, "the exchange has as many bindings as it may have")
        await self._define(*binding_record(binding))

    async def unbind(self, binding: Binding) -> None:
        if binding.key in self.gateway.definitions.bindings.get(binding.exchange, {}):
            await self._define(binding.key.encode(), None)
            await self._exchange_left(binding.exchange)

    async def _exchange_left(self, name: str) -> None:
        """An exchange that deletes itself goes with its last binding."""
        definitions = self.gateway.definitions
        exchange = definitions.exchanges.get(name)
        if exchange is not None and exchange.auto_delete and not definitions.bindings.get(name):
            await self.delete_exchange(name, if_unused=True)

    # Queues

    async def declare_queue(self, name: str, wanted: Queue) -> tuple[int, int]:
        """Make a queue if it is not there; its messages and consumers."""
        known = self.gateway.definitions.queues.get(name)
        if known is None:
            await self._make_queue(wanted)
            return 0, 0
        self.queue(name)
        for what in ("durable", "auto_delete", "exclusive", "arguments"):
            if getattr(known, what) != getattr(wanted, what):
                raise ChannelFault(
                    PRECONDITION_FAILED,
                    f"queue '{name}' has another {what.replace('_', '-')}: {_of(getattr(known, what))}",
                )
        return await self.look_at(name)

    async def look_at(self, name: str) -> tuple[int, int]:
        """The messages and the consumers of a queue."""
        queue = self.queue(name)
        return await self.gateway.depth(self.session, queue), self.gateway.consumers_of(name)

    async def _make_queue(self, queue: Queue) -> None:
        gateway, access, arguments = self.gateway, self.session.access, queue.arguments
        if len(gateway.definitions.queues) >= gateway.limits.queues:
            raise ChannelFault(RESOURCE_ERROR, "there are as many queues as there may be")
        topic = arguments.get(TOPIC_ARGUMENT) or topic_name(queue.name)
        group = arguments.get(GROUP_ARGUMENT) or GROUP_PREFIX + queue.name
        configs = {}
        if RETENTION_ARGUMENT in arguments:
            configs["retention.ms"] = str(arguments[RETENTION_ARGUMENT])
        partitions = arguments.get(PARTITIONS_ARGUMENT, gateway.queue_defaults.partitions)
        await access.configure_group(
            group,
            {
                "share.auto.offset.reset": arguments.get(START_ARGUMENT, STARTS[0]),
                "share.isolation.level": "read_committed",
                "share.delivery.count.limit": str(DELIVERIES_MAX),
                "share.record.lock.duration.ms": _LOCK_MS,
            },
        )
        made = await access.create_topic(topic, partitions, configs)
        try:
            await access.persist(lambda: access.topic(topic))
            defined = replace(queue, topic=topic, group=group, owns_topic=made)
            await self._define(*queue_record(defined))
        except ClientFault:
            if made:
                await access.delete_topic(topic)
            raise

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with its bindings, its share group, and its topic if that was made for it."""
        definitions = self.gateway.definitions
        if name not in definitions.queues:
            return 0
        queue = self.queue(name)
        if if_unused and self.gateway.consumers_of(name):
            raise ChannelFault(PRECONDITION_FAILED, f"queue '{name}' is in use")
        depth = await self.gateway.depth(self.session, queue)
        if if_empty and depth:
            raise ChannelFault(PRECONDITION_FAILED, f"queue '{name}' is not empty")
        await remove_queue(self.gateway, self.session, queue)
        return depth

    async def purge(self, name: str) -> int:
        """Accept what the queue has now, as a member of its share group; how much that was."""
        queue = self.queue(name)
        reader = await self.session.reader(queue)
        access = self.session.access
        count = len((await access.persist(lambda: access.topic(queue.topic))).leaders)
        ends = [
            await access.persist(lambda index=index: access.list_offset(queue.topic, index))  # type: ignore[misc]
            for index in range(count)
        ]
        purged = 0
        deadline = time.monotonic() + _PURGE_SECONDS_MAX
        while time.monotonic() < deadline:
            found = await asyncio.gather(*(reader.get() for _ in range(50)))
            taken = [delivery for delivery in found if delivery is not None]
            beyond = 0
            for delivery in taken:
                partition, record, _ = delivery.acquired
                if record.offset < ends[partition]:
                    delivery.settle(ACCEPT)
                    purged += 1
                else:
                    beyond += 1
                    delivery.settle(RELEASE)
            if beyond or len(taken) < len(found):
                return purged
        raise ChannelFault(RESOURCE_ERROR, f"purging '{name}' took too long; {purged} are gone")


async def remove_queue(gateway: Gateway, session: UserSession, queue: Queue) -> None:
    """Take a queue away, as one user; raises ClientFault where he may not."""
    definitions = gateway.definitions
    exchanges = {binding.exchange for binding in definitions.bindings_of(TO_QUEUE, queue.name)}
    for binding in definitions.bindings_of(TO_QUEUE, queue.name):
        await gateway.log.define(session.writer, binding.key.encode(), None)
    await gateway.log.define(session.writer, f"queue/{queue.name}".encode(), None)
    await gateway.drop_readers(queue.name)
    if queue.owns_topic:
        await session.access.delete_topic(queue.topic)
        for each in gateway.all_sessions():
            each.access.forget_topic(queue.topic)
            each.writer.forget_topic(queue.topic)
    try:
        await session.access.delete_group(queue.group)
    except ClientFault as fault:
        log.info("the share group of queue %s stays: %s", queue.name, fault)
    for name in exchanges:
        exchange = definitions.exchanges.get(name)
        if exchange is not None and exchange.auto_delete and not definitions.bindings.get(name):
            await gateway.log.define(session.writer, f"exchange/{name}".encode(), None)


def checked_arguments(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a declaration as JSON has them; raises ChannelFault."""
    found = dict(arguments or {})
    for name, value in found.items():
        if name in NOT_SERVED:
            raise ChannelFault(NOT_IMPLEMENTED, f"the argument {name} is not served")
        if name in _NUMBERS:
            lowest, highest = _NUMBERS[name]
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
                raise ChannelFault(PRECONDITION_FAILED, f"{name} is a number from {lowest} to {highest}")
        elif name in _TEXTS and not isinstance(value, str):
            raise ChannelFault(PRECONDITION_FAILED, f"{name} is text")
        elif name == "x-queue-type" and value not in QUEUE_TYPES:
            raise ChannelFault(NOT_IMPLEMENTED, f"x-queue-type is {' or '.join(QUEUE_TYPES)}")
        elif name == START_ARGUMENT and value not in STARTS:
            raise ChannelFault(PRECONDITION_FAILED, f"{name} is {' or '.join(STARTS)}")
        elif not _is_json(value):
            raise ChannelFault(PRECONDITION_FAILED, f"the argument {name} is of a type that is not kept")
    return found


def _is_json(value: Any, depth: int = 8) -> bool:
    if value is None or isinstance(value, (str, bool, int, float)):
        return True
    if depth and isinstance(value, list):
        return all(_is_json(each, depth - 1) for each in value)
    return (
        bool(depth) and isinstance(value, dict) and all(_is_json(each, depth - 1) for each in value.values())
    )


def _of(value: Any) -> str:
    return str(value)[:120]

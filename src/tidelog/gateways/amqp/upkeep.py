"""What a gateway does again and again: leases, idle readers, queues and messages whose time is over.

Each look is of what is in the topics, so any gateway may do it, and two that do it at once do no harm.
"""

import asyncio
import logging
import time

from tidelog.client.faults import ClientFault
from tidelog.gateways.amqp.definitions import Queue
from tidelog.gateways.amqp.expiry import Expiry
from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.record_writer import let_go
from tidelog.gateways.amqp.topology import remove_queue

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
LEASE_SECONDS = 10.0
#: a gateway that said nothing for so long is dead
DEAD_SECONDS = 45.0


class Upkeep:
    """The rounds of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._task: asyncio.Task[None] | None = None
        self._lease_due = 0.0
        self._told = False
        self._looks = (
            self._lease,
            gateway.close_idle,
            self._dead_gateways,
            self._expired_queues,
            Expiry(gateway).look,
        )
        #: when queues that expire were seen unused first
        self._unused_since: dict[str, float] = {}

    async def start(self) -> None:
        await self._lease()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await let_go(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            for look in self._looks:
                try:
                    await look()
                except (ClientFault, TimeoutError) as fault:
                    log.info("upkeep: %s", fault)

    async def _lease(self) -> None:
        """Say that this gateway is there."""
        gateway = self._gateway
        now = time.monotonic()
        if now < self._lease_due:
            return
        self._lease_due = now + LEASE_SECONDS
        key, value = f"gateway/{gateway.id}".encode(), b'{"at_ms":%d}' % int(time.time() * 1000)
        try:
            await gateway.log.define(gateway.own.writer, key, value)
            gateway.leased = True
        except (ClientFault, TimeoutError) as fault:
            if not self._told:
                self._told = True
                log.warning(
                    "exclusive queues of this gateway stay if it is killed: %s; give its user Write on %s",
                    fault,
                    gateway.log.topic,
                )

    async def _dead_gateways(self) -> None:
        """Delete the exclusive queues of gateways that are not there any more."""
        gateway = self._gateway
        now_ms = int(time.monotonic() * 1000)
        seen = gateway.definitions.gateways
        dead = {each for each, at_ms in seen.items() if now_ms - at_ms > DEAD_SECONDS * 1000} - {gateway.id}
        for each in dead:
            for queue in [row for row in gateway.definitions.queues.values() if row.gateway == each]:
                log.warning("the exclusive queue %s was left by a gateway that is gone", queue.name)
                await remove_queue(gateway, gateway.own, queue)
            await gateway.log.define(gateway.own.writer, f"gateway/{each}".encode(), None)

    async def _expired_queues(self) -> None:
        """Delete queues with x-expires that nobody used for so long."""
        gateway = self._gateway
        now = time.monotonic()
        for queue in [row for row in gateway.definitions.queues.values() if row.expires_ms is not None]:
            if gateway.readers_of(queue.name):
                self._unused_since.pop(queue.name, None)
                continue
            since = self._unused_since.setdefault(queue.name, now)
            if (now - since) * 1000 >= (queue.expires_ms or 0) and not await self._is_read(queue):
                del self._unused_since[queue.name]
                await remove_queue(gateway, gateway.own, queue)

    async def _is_read(self, queue: Queue) -> bool:
        """Whether another gateway reads it."""
        return bool(await self._gateway.own.access.members(queue.group))

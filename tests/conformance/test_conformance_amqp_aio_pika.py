"""The AMQP gateway with aio-pika: fanout to several queues, TTL, a gateway that is killed and comes back.

With TIDELOG_AMQP_TESTS=1 (`make amqp-test`).
"""

import asyncio
import os
from collections.abc import Iterator

import aio_pika
import pytest

from tests.support.amqp_gateway import GatewayProcess, RunningGateway
from tidelog.testing.broker import RunningBroker

PATIENCE_SECONDS = 40.0
pytestmark = [
    pytest.mark.skipif(os.environ.get("TIDELOG_AMQP_TESTS") != "1", reason="TIDELOG_AMQP_TESTS is not 1"),
    pytest.mark.xdist_group("amqp"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker() as running:
        yield running


def test_fanout_and_time_to_live(broker: RunningBroker) -> None:
    async def scenario(port: int) -> None:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        async with connection:
            channel = await connection.channel()
            news = await channel.declare_exchange("news", aio_pika.ExchangeType.FANOUT)
            queues = [await channel.declare_queue(exclusive=True) for _ in range(2)]
            short = await channel.declare_queue("short", arguments={"x-message-ttl": 300})
            for queue in (*queues, short):
                await queue.bind(news)
            for number in range(20):
                await news.publish(aio_pika.Message(b"%d" % number), "")
            await asyncio.sleep(0.5)
            for queue in queues:
                bodies = []
                async with queue.iterator(timeout=PATIENCE_SECONDS) as messages:
                    async for message in messages:
                        async with message.process():
                            bodies.append(int(message.body))
                        if len(bodies) == 20:
                            break
                assert bodies == list(range(20))
            assert await short.get(fail=False) is None

    with RunningGateway(broker.bootstrap) as gateway:
        asyncio.run(asyncio.wait_for(scenario(gateway.port), PATIENCE_SECONDS))


def test_nothing_confirmed_is_lost_when_the_gateway_is_killed(broker: RunningBroker) -> None:
    """The same clients go on with the gateway that comes after it, at the same port."""
    count = 60

    async def scenario(process: GatewayProcess) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{process.port}/?reconnect_interval=0.2"
        connection = await aio_pika.connect_robust(url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        queue = await channel.declare_queue("jobs", durable=True)
        confirmed: set[int] = set()
        seen: set[int] = set()

        async def consume(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await asyncio.sleep(0.01)
            seen.add(int(message.body))
            await message.ack()

        await queue.consume(consume)
        for number in range(count):
            if number == count // 2:
                process.kill()
                process.start()
            while number not in confirmed:
                try:
                    message = aio_pika.Message(b"%d" % number)
                    await asyncio.wait_for(channel.default_exchange.publish(message, "jobs"), 5)
                    confirmed.add(number)
                except (aio_pika.exceptions.AMQPError, ConnectionError, TimeoutError, RuntimeError):
                    await asyncio.sleep(0.2)
        while seen < confirmed:
            await asyncio.sleep(0.05)
        await connection.close()

    with GatewayProcess(broker.bootstrap) as process:
        asyncio.run(asyncio.wait_for(scenario(process), PATIENCE_SECONDS))

"""What changes under a gateway that runs: partitions that a topic has got, rights that were taken away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import aiomqtt
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from tests.conformance.drivers.contract import new_name
from tidelog.client.client_settings import ClientSettings
from tidelog.gateways.mqtt import gateway as gateway_module
from tidelog.gateways.mqtt import serving
from tidelog.gateways.mqtt.access import READ, Caller, OpenAccess
from tidelog.gateways.mqtt.gateway import GatewaySettings
from tidelog.gateways.mqtt.mapping import default_map
from tidelog.gateways.mqtt.serving import Listening, Ports, serve

pytestmark = pytest.mark.xdist_group("mqtt")

SECONDS_MAX = 30
PARTITIONS = 12


@contextlib.asynccontextmanager
async def running(bootstrap: str, topic: str) -> AsyncIterator[Ports]:
    """A gateway on this loop."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    client = {"bootstrap.servers": bootstrap}
    settings = GatewaySettings(
        client, ClientSettings.from_options(client), new_name("gateway"), default_map(topic)
    )
    served = asyncio.ensure_future(serve(settings, Listening("127.0.0.1", 0), None, ready.set_result, stop))
    await asyncio.wait([served, ready], return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS_MAX)
    try:
        yield ready.result()
    finally:
        stop.set()
        await served


def test_a_partition_that_is_added_is_read_from_its_beginning(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "REFRESH_TICKS", 2)
    topic, root = new_name("mqtt"), new_name("grown")

    def add_and_write() -> None:
        """Before the gateway can know of the partition."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_partitions([NewPartitions(topic, PARTITIONS)]).values():
            future.result(SECONDS_MAX)
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, b"x", f"{root}/new".encode(), partition=PARTITIONS - 1)
        assert producer.flush(SECONDS_MAX) == 0

    async def scenario() -> str:
        async with running(bootstrap, topic) as ports, aiomqtt.Client("127.0.0.1", ports.mqtt) as client:
            await client.subscribe(f"{root}/#", qos=1)
            await asyncio.to_thread(add_and_write)
            return str((await anext(aiter(client.messages))).topic)

    assert asyncio.run(asyncio.wait_for(scenario(), SECONDS_MAX)) == f"{root}/new"


def test_what_may_not_be_read_any_more_is_not_delivered(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "REFRESH_TICKS", 1)
    topic, root = new_name("mqtt"), new_name("revoked")
    forbidden = asyncio.Event()

    class Forbidding(OpenAccess):
        async def allowed(self, caller: Caller, topics: Iterable[str], right: int) -> set[str]:
            return {name for name in topics if not (right == READ and forbidden.is_set())}

    async def scenario() -> None:
        monkeypatch.setattr(serving, "OpenAccess", Forbidding)
        async with running(bootstrap, topic) as ports, aiomqtt.Client("127.0.0.1", ports.mqtt) as client:
            await client.subscribe(f"{root}/#", qos=1)
            messages = aiter(client.messages)
            await client.publish(f"{root}/a", b"1", qos=1)
            assert str((await anext(messages)).topic) == f"{root}/a"
            forbidden.set()
            await asyncio.sleep(3.5)
            await client.publish(f"{root}/a", b"2", qos=1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(messages), 1)

    asyncio.run(asyncio.wait_for(scenario(), SECONDS_MAX))

"""A broker in a thread of the test process, and connections to it."""

from collections.abc import Iterator
from itertools import count

import pytest

# Requests are written in one place, beside the programs of the chaos tier, which run without pytest.
from tests.chaos.kafka_wire import WireClient
from tidelog.model.settings import BrokerSettings
from tidelog.server.process import BrokerThread

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "socket.request.max.bytes": "2000000",
    "max.incremental.fetch.session.cache.slots": "4",
}
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """One broker for the tests of a module."""
    folder = tmp_path_factory.mktemp("wire")
    thread = BrokerThread(BrokerSettings.resolve({**SETTINGS, "log.dirs": str(folder)}))
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(client: WireClient) -> str:
    """A new topic with two partitions."""
    name = f"topic-{next(_numbers)}"
    client.create_topic(name, 2)
    return name

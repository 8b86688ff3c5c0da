"""The ZooKeeper that the contract tests share: started with the first test that wants it."""

import os
import socket
from collections.abc import Iterator

import pytest

from tidelog.server.zookeeper_process import ZookeeperError, ZookeeperServers


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServers]:
    """A real ZooKeeper on a free port; without Java or the jars, its tests are skipped (or fail in CI)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers = ZookeeperServers(tmp_path_factory.mktemp("zookeeper"), port=port)
    try:
        servers.start()
    except ZookeeperError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}; {error.hint}")
    yield servers
    servers.stop()

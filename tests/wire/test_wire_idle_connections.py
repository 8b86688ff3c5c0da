"""Connections that a broker ends: idle ones (`connections.max.idle.ms`), and all when its session lapsed."""

from pathlib import Path

import pytest

from tests.chaos.kafka_wire import WireClient
from tidelog.model.settings import BrokerSettings
from tidelog.server.process import BrokerThread


@pytest.mark.parametrize(("idle_ms", "closes"), [("100", True), ("-1", False)])
def test_an_idle_connection_is_closed_or_stays_for_ever(tmp_path: Path, idle_ms: str, closes: bool) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    broker = BrokerThread(BrokerSettings.resolve({**settings, "connections.max.idle.ms": idle_ms}))
    broker.start()
    try:
        with WireClient(broker.bootstrap) as client:
            # Looked at once a second.
            assert client.closed_by_peer(within_seconds=2.5) is closes
            if not closes:
                assert client.ask("api_versions", 0).api_keys
    finally:
        broker.stop()


def test_everybody_is_let_go_when_the_session_lapsed(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    thread = BrokerThread(BrokerSettings.resolve(settings))
    thread.start()
    try:
        assert thread.node is not None and thread.node.broker is not None and thread._loop is not None
        with WireClient(thread.bootstrap) as client:
            assert client.ask("api_versions", 0).api_keys
            thread._loop.call_soon_threadsafe(thread.node.broker._lapse, "no progress")
            assert client.closed_by_peer(within_seconds=5)
    finally:
        thread.stop()

"""Which store the settings choose, and how it is told when that cannot be."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog.coordination import zookeeper
from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.opening import embedded_path, open_store
from tidelog.coordination.store import StoreError
from tidelog.coordination.zookeeper import ZookeeperSecurity
from tidelog.model.settings import BrokerSettings, SettingsError


def test_a_broker_alone_has_its_file_beside_its_data(tmp_path: Path) -> None:
    settings = BrokerSettings.resolve({"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"})
    assert embedded_path(settings) == tmp_path / "one" / "metadata.sqlite"
    store = open_store(settings)
    assert isinstance(store, EmbeddedStore)
    assert store._session.timeout_ms == 9000
    store.close()
    assert (tmp_path / "one" / "metadata.sqlite").exists()


def test_brokers_of_one_machine_share_a_file(tmp_path: Path) -> None:
    settings = BrokerSettings.resolve(
        {
            "log.dirs": str(tmp_path / "broker-1"),
            "tidelog.coordination.path": str(tmp_path / "cluster" / "store.sqlite"),
            "broker.session.timeout.ms": "3000",
        }
    )
    store = open_store(settings)
    assert isinstance(store, EmbeddedStore)
    assert store._session.timeout_ms == 3000
    store.close()
    assert (tmp_path / "cluster" / "store.sqlite").exists()
    assert not (tmp_path / "broker-1").exists()


def test_zookeeper_gets_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fake(connect: str, **options: Any) -> object:
        asked.update(options, connect=connect)
        return object()

    monkeypatch.setattr(zookeeper, "ZookeeperStore", fake)
    open_store(BrokerSettings.resolve({"zookeeper.connect": "a:1,b:2/chroot"}))
    assert asked == {
        "connect": "a:1,b:2/chroot",
        "session_timeout_ms": 18_000,
        "connection_timeout_ms": 18_000,
        "security": ZookeeperSecurity(),
    }
    open_store(
        BrokerSettings.resolve(
            {
                "zookeeper.connect": "a:1",
                "zookeeper.session.timeout.ms": "6000",
                "zookeeper.connection.timeout.ms": "2000",
                "zookeeper.set.acl": "true",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.truststore.location": "/ca.pem",
                "zookeeper.ssl.keystore.location": "/me.pem",
                "zookeeper.ssl.keystore.password": "hush",
                "zookeeper.ssl.endpoint.identification.algorithm": "",
                "tidelog.zookeeper.sasl.mechanism": "DIGEST-MD5",
                "tidelog.zookeeper.sasl.username": "broker",
                "tidelog.zookeeper.sasl.password": "secret",
            }
        )
    )
    assert asked["session_timeout_ms"] == 6000
    assert asked["connection_timeout_ms"] == 2000
    security = asked["security"]
    assert security == ZookeeperSecurity(
        True, "/ca.pem", "/me.pem", "hush", False, "DIGEST-MD5", "broker", "secret", True
    )
    options = security.client_options()
    assert options["use_ssl"] and not options["check_hostname"]
    assert options["sasl_options"]["password"] == "secret"
    assert "secret" not in repr(security) and "hush" not in repr(security)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidelog.coordination.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(StoreError, match=r"pip install 'tidelog\[zookeeper\]'"):
        open_store(BrokerSettings.resolve({"zookeeper.connect": "a:1"}))


def test_a_mechanism_that_nobody_speaks_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"tidelog\.zookeeper\.sasl\.mechanism"):
        BrokerSettings.resolve({"tidelog.zookeeper.sasl.mechanism": "PLAIN"})

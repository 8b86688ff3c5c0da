"""Which store a broker opens: the ZooKeeper ensemble its settings name, or else the file on this machine."""

from pathlib import Path

from tidelog.coordination.store import CoordinationStore, StoreError
from tidelog.model.settings import BrokerSettings

FILE_NAME = "metadata.sqlite"


def open_store(settings: BrokerSettings) -> CoordinationStore:
    """Open a new session of the broker's store; raises StoreError."""
    connect = settings.get("zookeeper.connect")
    if connect:
        return _open_zookeeper(str(connect), settings)
    from tidelog.coordination.embedded import EmbeddedStore

    return EmbeddedStore(embedded_path(settings), session_timeout_ms=session_timeout_ms(settings))


def session_timeout_ms(settings: BrokerSettings) -> int:
    """How long the broker's store believes in a session that it does not hear of."""
    ensemble = settings.get("zookeeper.connect")
    return settings.get_int("zookeeper.session.timeout.ms" if ensemble else "broker.session.timeout.ms")


def embedded_path(settings: BrokerSettings) -> Path:
    """The file of the embedded store."""
    path = settings.get("tidelog.coordination.path")
    if path:
        return Path(str(path))
    # The order of the directories says nothing: it is where it was made, and made in the first one.
    found = [Path(each) / FILE_NAME for each in settings.log_dirs if (Path(each) / FILE_NAME).exists()]
    return found[0] if found else Path(settings.log_dirs[0]) / FILE_NAME


def _open_zookeeper(connect: str, settings: BrokerSettings) -> CoordinationStore:
    try:
        from tidelog.coordination.zookeeper import ZookeeperSecurity, ZookeeperStore
    except ModuleNotFoundError as missing:
        raise StoreError(
            f"zookeeper.connect is set, but {missing.name} is not installed: pip install 'tidelog[zookeeper]'"
        ) from missing

    def text(name: str) -> str | None:
        value = settings.get(name)
        return str(value) if value else None

    session_timeout_ms = settings.get_int("zookeeper.session.timeout.ms")
    connection_timeout_ms = settings.get("zookeeper.connection.timeout.ms")
    security = ZookeeperSecurity(
        tls=settings.get_bool("zookeeper.ssl.client.enable"),
        truststore=text("zookeeper.ssl.truststore.location"),
        keystore=text("zookeeper.ssl.keystore.location"),
        keystore_password=text("zookeeper.ssl.keystore.password"),
        check_hostname=settings.get("zookeeper.ssl.endpoint.identification.algorithm") == "HTTPS",
        sasl_mechanism=text("tidelog.zookeeper.sasl.mechanism"),
        sasl_username=text("tidelog.zookeeper.sasl.username"),
        sasl_password=text("tidelog.zookeeper.sasl.password"),
        set_acl=settings.get_bool("zookeeper.set.acl"),
    )
    return ZookeeperStore(
        connect,
        session_timeout_ms=session_timeout_ms,
        connection_timeout_ms=(
            connection_timeout_ms if isinstance(connection_timeout_ms, int) else session_timeout_ms
        ),
        security=security,
    )

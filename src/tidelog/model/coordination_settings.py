"""The settings of the coordination store: rows of the one table (see settings_table).

Deliberate differences from Kafka with ZooKeeper: key material is PEM (Kafka's `PEM` store type, which has no
truststore password), and SASL credentials are settings instead of a JAAS file.
"""

from tidelog.model.setting_rows import Importance, SettingType
from tidelog.model.setting_rows import broker_setting as _broker

_BOOLEAN, _INT, _STRING, _PASSWORD = (
    SettingType.BOOLEAN, SettingType.INT, SettingType.STRING, SettingType.PASSWORD
)  # fmt: skip
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

COORDINATION_SETTINGS = (
    _broker(
        "tidelog.coordination.path", _STRING, None, _HIGH,
        "The file that the brokers of one machine share as their store; metadata.sqlite in the first of "
        "log.dirs when not set. Not used when zookeeper.connect is set.",
    ),
    _broker(
        "broker.session.timeout.ms", _INT, 9000, _HIGH,
        "How long a broker that hangs keeps its place in a cluster with the embedded store; a killed one is "
        "noticed at once. One whose event loop or disk stands still for two thirds of it gives up its place.",
        minimum=100,
    ),
    _broker(
        "zookeeper.connect", _STRING, None, _HIGH,
        "The ZooKeeper ensemble that keeps the cluster's metadata, as host:port,host:port/chroot.",
    ),
    _broker(
        "zookeeper.session.timeout.ms", _INT, 18_000, _HIGH,
        "How long ZooKeeper waits for a broker that it does not hear from; the ensemble may have limits. A "
        "broker whose event loop or disk stands still for two thirds of it gives up its place.", minimum=100,
    ),
    _broker(
        "zookeeper.connection.timeout.ms", _INT, None, _HIGH,
        "How long a call waits for ZooKeeper; zookeeper.session.timeout.ms counts when not set.", minimum=1,
    ),
    _broker(
        "zookeeper.set.acl", _BOOLEAN, False, _HIGH,
        "Let only whoever authenticated as the broker use what it stores; needs SASL.",
    ),
    _broker(
        "zookeeper.ssl.client.enable", _BOOLEAN, False, _MEDIUM, "Talk TLS to ZooKeeper.",
    ),
    _broker(
        "zookeeper.ssl.truststore.location", _STRING, None, _MEDIUM,
        "A PEM file of the certificates that ZooKeeper's may be signed with.",
    ),
    _broker(
        "zookeeper.ssl.keystore.location", _STRING, None, _MEDIUM,
        "A PEM file with the broker's key and certificate, for an ensemble that wants them.",
    ),
    _broker(
        "zookeeper.ssl.keystore.password", _PASSWORD, None, _MEDIUM, "The password of the keystore's key.",
    ),
    _broker(
        "zookeeper.ssl.endpoint.identification.algorithm", _STRING, "HTTPS", _LOW,
        "HTTPS: the certificate must be for the host that was connected to; empty: any that is trusted.",
        choices=("HTTPS", ""),
    ),
    _broker(
        "tidelog.zookeeper.sasl.mechanism", _STRING, None, _MEDIUM,
        "How to authenticate with ZooKeeper; not at all when not set.", choices=("DIGEST-MD5", "GSSAPI"),
    ),
    _broker(
        "tidelog.zookeeper.sasl.username", _STRING, None, _MEDIUM, "The user name for DIGEST-MD5.",
    ),
    _broker(
        "tidelog.zookeeper.sasl.password", _PASSWORD, None, _MEDIUM, "The password for DIGEST-MD5.",
    ),
)  # fmt: skip

"""DescribeConfigs of Tidelog and of a real Apache Kafka, side by side: every resource, version, option.

    tests/conformance/oracle fresh
    python -m tests.conformance.compare_configs [--kafka BOOTSTRAP] [--verbose]

Starts a Tidelog with the settings of the oracle, makes the same topics, groups and subscriptions on both, and
compares every setting: value, source, synonyms, type, read-only, sensitive, whether it is documented. Also
errors of what cannot be altered, and ListConfigResources. Prints every difference that is not in `EXPLAINED`,
and exits with 1 if there is one. Takes about ten seconds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.testing.broker import RunningBroker

BY_NAME = {api.name: api for api in APIS.values()}
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
ORACLE = Path(__file__).with_name("oracle")

#: settings that the oracle is started with and that mean the same here
SHARED = (
    "num.partitions",
    "auto.create.topics.enable",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
    "group.initial.rebalance.delay.ms",
    "group.min.session.timeout.ms",
    "group.share.min.record.lock.duration.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.session.timeout.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "delete.topic.enable",
)

#: broker settings whose value or source differs, and why; docs/compatibility.md says the same
EXPLAINED = {
    "advertised.listeners": "another address",
    "listeners": "another address",
    "log.dir": "another folder",
    "log.dirs": "another folder",
    "node.id": "has a default here",
    "broker.id": "follows node.id here",
    "process.roles": "no KRaft",
    "controller.listener.names": "no KRaft",
    "controller.quorum.voters": "no KRaft",
    "listener.security.protocol.map": "no listener of controllers",
    "background.threads": "fewer threads here",
    "broker.session.timeout.ms": "importance",
    "group.coordinator.rebalance.protocols": "no streams groups",
    "leader.imbalance.check.interval.seconds": "an int here",
    "max.connections.per.ip.overrides": "a list here",
    "sasl.enabled.mechanisms": "no GSSAPI",
    "sasl.mechanism.inter.broker.protocol": "no GSSAPI",
    "security.inter.broker.protocol": "not set means the first listener here",
    "socket.listen.backlog.size": "larger here",
    "socket.receive.buffer.bytes": "left to the system here",
    "socket.send.buffer.bytes": "left to the system here",
    "producer.id.expiration.check.interval.ms": "internal in Kafka, which does not show it",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "ssl.allow.dn.changes": "names are not compared here",
    "ssl.allow.san.changes": "names are not compared here",
}
#: Kafka's eligible leader replicas set it for all brokers; here it is the default
EXPLAINED_EVERYWHERE = {"min.insync.replicas"}
#: changed while the broker runs in Kafka, by a restart here
READ_ONLY_HERE = {
    "sasl.jaas.config",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
}


def ask(bootstrap: str, name: str, version: int, fields: dict[str, Any]) -> Any:
    host, port = bootstrap.rsplit(":", 1)
    options = {"bootstrap.servers": bootstrap, "request.timeout.ms": "20000"}
    link = Link.open(host, int(port), ClientSettings.from_options(options))
    api = BY_NAME[name]
    try:
        ticket = link.send(api.key, version, messages.encode_request(api, version, fields))
        return messages.decode_response(api, version, memoryview(link.receive(ticket)))
    finally:
        link.close()


def create_topic(bootstrap: str, name: str, configs: dict[str, str]) -> None:
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": rows}
    answer = ask(bootstrap, "CreateTopics", 7, {"topics": [topic], "timeout": 20_000, "validate_only": False})
    assert not int(answer.topics[0].error_code), answer


def alter(bootstrap: str, kind: int, name: str, operation: int, setting: str, value: str | None) -> int:
    config = {"name": setting, "config_operation": operation, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    answer = ask(bootstrap, "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})
    return int(answer.responses[0].error_code)


def describe(bootstrap: str, version: int, kind: int, name: str, **options: Any) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": options.get("keys")}
    fields = {
        "resources": [resource],
        "include_synonyms": options.get("synonyms", False),
        "include_documentation": options.get("documentation", False),
    }
    return ask(bootstrap, "DescribeConfigs", version, fields).results[0]


def essence(config: Any) -> dict[str, Any]:
    found = {
        "value": config.value,
        "read only": config.read_only,
        "source": int(config.config_source),
        "sensitive": config.is_sensitive,
        "synonyms": [(one.name, one.value, int(one.source)) for one in config.synonyms],
    }
    if hasattr(config, "config_type"):
        found["type"] = config.config_type
        found["documented"] = bool(config.documentation)
    return found


class Comparison:
    """Asks both, and remembers what differs."""

    def __init__(self, kafka: str, tidelog: str) -> None:
        self.bootstraps = (kafka, tidelog)
        self.differences: dict[str, tuple[str, Any, Any]] = {}

    def note(self, where: str, what: str, kafka: Any, tidelog: Any) -> None:
        if kafka != tidelog:
            self.differences.setdefault(what, (where, kafka, tidelog))

    def resource(self, kind: int, name: str, *, broker_name: str | None = None, **options: Any) -> None:
        """Every version, with and without synonyms and documentation."""
        names = (name, name if broker_name is None else broker_name)
        for version in range(1, 5):
            for synonyms in (False, True):
                for documentation in (False, True) if version >= 3 else (False,):
                    chosen = {"synonyms": synonyms, "documentation": documentation, **options}
                    answers = [
                        describe(bootstrap, version, kind, each, **chosen)
                        for bootstrap, each in zip(self.bootstraps, names, strict=True)
                    ]
                    where = f"type {kind} {name!r} v{version} synonyms={synonyms} docs={documentation}"
                    self.note(where, f"error of {kind} {name!r}", *(int(one.error_code) for one in answers))
                    self._configs(where, kind, *({c.name: c for c in one.configs} for one in answers))

    def _configs(self, where: str, kind: int, kafka: dict[str, Any], tidelog: dict[str, Any]) -> None:
        if kind == LOGGER:  # the loggers are others; each has the same form
            kafka, tidelog = ({"root": each["root"]} if "root" in each else {} for each in (kafka, tidelog))
        for name in sorted(kafka.keys() | tidelog.keys()):
            if (name in EXPLAINED and kind == BROKER) or name in EXPLAINED_EVERYWHERE:
                continue
            if name not in tidelog:
                self.note(where, f"{kind}: {name}", essence(kafka[name]), None)
            elif name not in kafka:
                own = name.startswith(("tidelog.", "zookeeper.")) or name in OWN
                self.note(where, f"{kind}: {name}", None, None if own else essence(tidelog[name]))
            else:
                left, right = essence(kafka[name]), essence(tidelog[name])
                if kind == LOGGER:
                    left.pop("value"), right.pop("value")
                if name in READ_ONLY_HERE:
                    left["read only"] = True
                for key in left:
                    self.note(where, f"{kind}: {name}: {key}", left[key], right[key])

    def altered(self, kind: int, name: str, operation: int, setting: str, value: str | None) -> None:
        """The same change on both: the same error, or none."""
        codes = [alter(bootstrap, kind, name, operation, setting, value) for bootstrap in self.bootstraps]
        what = f"alter {kind} {name!r} {setting} {operation} {value!r}"
        self.note("alter", what, *codes)


#: settings of Kafka that are not among the documented ones of its brokers
OWN = {
    "super.users",
    "allow.everyone.if.no.acl.found",
    "leader.imbalance.per.broker.percentage",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "unclean.recovery.timeout.ms",
}
ALTERATIONS: tuple[tuple[int, str, int, str, str | None], ...] = (
    (TOPIC, "plain", SET, "cleanup.policy", "nonsense"),
    (TOPIC, "plain", SET, "cleanup.policy", "compact,"),
    (TOPIC, "plain", SET, "cleanup.policy", ""),
    (TOPIC, "plain", APPEND, "cleanup.policy", "compact"),
    (TOPIC, "plain", SUBTRACT, "cleanup.policy", "compact"),
    (TOPIC, "plain", SET, "local.retention.ms", "1000"),
    (TOPIC, "plain", SET, "preallocate", "true"),
    (TOPIC, "plain", SET, "remote.storage.enable", "true"),
    (TOPIC, "plain", SET, "unknown.setting", "1"),
    (TOPIC, "nobody", SET, "retention.ms", "1"),
    (BROKER, "", SET, "log.cleanup.policy", ""),
    (BROKER, "", DELETE, "log.cleanup.policy", None),
    (BROKER, "", SET, "num.io.threads", "9"),
    (BROKER, "", SET, "log.retention.ms", "86400000"),
    (GROUP, "g", SET, "consumer.session.timeout.ms", "45000"),
    (GROUP, "g", SET, "consumer.session.timeout.ms", "1"),
    (GROUP, "g", SET, "consumer.session.timeout.ms", "60001"),
    (GROUP, "g", SET, "consumer.session.timeout.ms", "abc"),
    (GROUP, "g", APPEND, "consumer.session.timeout.ms", "1"),
    (GROUP, "g", SET, "consumer.heartbeat.interval.ms", "5000"),
    (GROUP, "g", SET, "consumer.heartbeat.interval.ms", "50000"),
    (GROUP, "g", SET, "consumer.assignment.interval.ms", "20000"),
    (GROUP, "g", SET, "share.auto.offset.reset", "earliest"),
    (GROUP, "g", SET, "share.auto.offset.reset", "by_duration:PT1H"),
    (GROUP, "g", SET, "share.auto.offset.reset", "nonsense"),
    (GROUP, "g", SET, "share.isolation.level", "read_committed"),
    (GROUP, "g", SET, "share.isolation.level", "nonsense"),
    (GROUP, "g", SET, "share.heartbeat.interval.ms", "100"),
    (GROUP, "g", SET, "streams.num.standby.replicas", "9"),
    (GROUP, "g", SET, "nonsense", "1"),
    (GROUP, "g", DELETE, "nonsense", None),
    (GROUP, "", SET, "consumer.session.timeout.ms", "45000"),
    (CLIENT_METRICS, "s", SET, "metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer."),
    (CLIENT_METRICS, "s", SET, "interval.ms", "1000"),
    (CLIENT_METRICS, "s", SET, "match", "client_id=a.*,client_software_name=x"),
    (CLIENT_METRICS, "s", SET, "interval.ms", "1"),
    (CLIENT_METRICS, "s", SET, "interval.ms", "3600001"),
    (CLIENT_METRICS, "s", SET, "interval.ms", "abc"),
    (CLIENT_METRICS, "s", SET, "match", "bad=1"),
    (CLIENT_METRICS, "s", SET, "match", "client_id=("),
    (CLIENT_METRICS, "s", SET, "match", "client_id"),
    (CLIENT_METRICS, "s", SET, "unknown", "1"),
    (CLIENT_METRICS, "s", APPEND, "metrics", "b"),
    (CLIENT_METRICS, "", SET, "metrics", "b"),
    (LOGGER, "0", SET, "root", "nonsense"),
    (LOGGER, "0", SET, "root", "debug"),
    (LOGGER, "0", SET, "nonsense", "INFO"),
    (LOGGER, "0", DELETE, "root", None),
    (LOGGER, "0", APPEND, "root", "INFO"),
    (LOGGER, "", SET, "root", "INFO"),
    (LOGGER, "9", SET, "root", "INFO"),
    (LOGGER, "x", SET, "root", "INFO"),
    (0, "x", SET, "a", "b"),
    (77, "x", SET, "a", "b"),
)


def compare_all(comparison: Comparison) -> None:
    for bootstrap in comparison.bootstraps:
        create_topic(bootstrap, "plain", {})
        create_topic(bootstrap, "special", {"retention.ms": "1000", "cleanup.policy": "compact,delete"})
    for row in ALTERATIONS:
        comparison.altered(*row)
    for name in ("plain", "special", "nobody", "bad name", ""):
        comparison.resource(TOPIC, name)
    comparison.resource(TOPIC, "special", keys=["retention.ms", "nonsense"])
    for name in ("0", "", "9", "x"):
        comparison.resource(BROKER, name)
        comparison.resource(LOGGER, name)
    comparison.resource(BROKER, "0", keys=["log.retention.ms", "num.io.threads", "nonsense"])
    for name in ("g", "nobody", ""):
        comparison.resource(GROUP, name)
    for name in ("s", "nobody", ""):
        comparison.resource(CLIENT_METRICS, name)
    comparison.resource(77, "x")
    for version, kinds in ((0, ()), (1, ()), (1, (GROUP,)), (1, (LOGGER, GROUP)), (1, (77,)), (1, (0,))):
        fields = {"resource_types": list(kinds)} if version else {}
        answers = [ask(each, "ListConfigResources", version, fields) for each in comparison.bootstraps]
        listed = [
            (
                int(answer.error_code),
                sorted(
                    (one.resource_name, getattr(one, "resource_type", 0)) for one in answer.config_resources
                ),
            )
            for answer in answers
        ]
        comparison.note("list", f"ListConfigResources v{version} {kinds}", *listed)


def oracle_settings(home: Path) -> dict[str, str]:
    lines = (home / "server.properties").read_text().splitlines()
    given = dict(line.partition("=")[::2] for line in lines)
    return {name: given[name] for name in SHARED}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kafka", help="the oracle's bootstrap address; it is asked when not given")
    options = parser.parse_args()
    kafka = options.kafka or subprocess.check_output([str(ORACLE), "address"], text=True).strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog"
    home = Path(os.environ.get("TIDELOG_ORACLE_HOME", cache / "kafka-oracle"))
    settings = {**oracle_settings(home), "node.id": "0"}
    with tempfile.TemporaryDirectory() as folder:
        settings["log.dirs"] = folder
        with RunningBroker(mode="process", settings=settings) as broker:
            comparison = Comparison(kafka, broker.bootstrap)
            compare_all(comparison)
    for what, (where, theirs, ours) in sorted(comparison.differences.items()):
        print(f"{what}\n    ({where})\n    Kafka    {theirs}\n    Tidelog  {ours}")
    print(f"{len(comparison.differences)} differences")
    return 1 if comparison.differences else 0


if __name__ == "__main__":
    sys.exit(main())

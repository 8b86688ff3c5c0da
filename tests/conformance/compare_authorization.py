"""What Tidelog and a real Apache Kafka answer to users who may nothing, or little: every API, side by side.

    python -m tests.conformance.compare_authorization [LIBS]

Starts a Kafka with SASL/PLAIN and its StandardAuthorizer from the jars in LIBS (fetched where none are
given), and a Tidelog with the same settings, sends both the requests of tests/unit/broker/api_requests.py,
and prints every difference in error codes, names and authorized operations. Exit code 1 if there is one that
is not explained below.
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conformance.test_conformance_acls import SETTINGS
from tests.support.kafka_nodes import KafkaNodes, quorum_settings
from tests.unit.broker.api_requests import BODIES, requests_of
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import ClientFault
from tidelog.client.link import Link
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS, Api
from tidelog.testing.broker import RunningBroker

KAFKA = "127.0.0.1:19192"
CONTROLLER_PORT = 19193
BY_NAME = {api.name: api for api in APIS.values()}
#: Kafka looks at the missing protocol before it looks at the right
EXPLAINED = {"SyncGroup"}
#: what two clusters may differ in
_IGNORED = {"throttle_time", "error_message", "host", "port", "cluster_id", "brokers", "controller_id"}
_COMPARED = {
    "name",
    "group_id",
    "transactional_id",
    "protocol_name",
    "topic_authorized_operations",
    "cluster_authorized_operations",
    "authorized_operations",
}


def ask(bootstrap: str, user: str, api: Api, version: int, fields: dict[str, Any]) -> Any:
    host, port = bootstrap.split(":")
    options = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
        "request.timeout.ms": "5000",
    }
    link = Link.open(host, int(port), ClientSettings.from_options(options))
    try:
        ticket = link.send(api.key, version, messages.encode_request(api, version, fields))
        return messages.decode_response(api, version, memoryview(link.receive(ticket)))
    finally:
        link.close()


def essence(answer: Any) -> Any:
    """Errors, names and operations of an answer."""
    if isinstance(answer, tuple):
        return sorted((part for part in map(essence, answer) if part), key=repr)
    if not dataclasses.is_dataclass(answer):
        return None
    found: dict[str, Any] = {}
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name in _IGNORED:
            continue
        if field.name.endswith("error_code"):
            found[field.name] = int(value)
        elif field.name in _COMPARED:
            found[field.name] = value
        elif part := essence(value):
            found[field.name] = part
    return found


def compare(tidelog: str, user: str, title: str) -> int:
    """Print what differs for a user; how many differences are not explained."""
    count = 0
    for name in BODIES:
        api = BY_NAME[name]
        lowest = max(api.min_version, api.served_from)
        # From these on topics are named by id, and a producer may ask for two-phase commit.
        highest = {"OffsetFetch": 9, "InitProducerId": 5}.get(name, api.max_version)
        for version in sorted({lowest, min(3, highest), highest}):
            for subject in ("secret", "absent"):
                answers: list[Any] = []
                for bootstrap in (KAFKA, tidelog):
                    try:
                        fields = requests_of(name, subject, None)
                        answers.append(essence(ask(bootstrap, user, api, version, fields)))
                    except ClientFault as fault:
                        answers.append(fault)
                if isinstance(answers[0], ClientFault) and not isinstance(answers[1], ClientFault):
                    # DescribeUserScramCredentials, and joins that wait for members of the joins before.
                    print(f"{title}: {name} v{version} {subject} was not answered by Kafka: {answers[1]}")
                elif answers[0] != answers[1] and name not in EXPLAINED:
                    count += 1
                    print(f"{title}: {name} v{version} {subject}\n  {answers[0]}\n  {answers[1]}")
    print(f"{title}: {count} differences")
    return count


def allow(bootstraps: tuple[str, ...], *rights: tuple[int, str, int, int]) -> None:
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": way,
            "principal": "User:alice",
            "host": "*",
            "operation": operation,
            "permission_type": 3,
        }
        for kind, name, way, operation in rights
    ]
    for bootstrap in bootstraps:
        answer = ask(bootstrap, "admin", BY_NAME["CreateAcls"], 3, {"creations": rows})
        assert not any(int(result.error_code) for result in answer.results), answer
    time.sleep(2)


def start_kafka(folder: Path, libraries: Path | None) -> KafkaNodes:
    settings = {
        **SETTINGS,
        **quorum_settings(1, {1: CONTROLLER_PORT}),
        "listeners": f"SASL_PLAINTEXT://{KAFKA},CONTROLLER://127.0.0.1:{CONTROLLER_PORT}",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": SETTINGS["sasl.jaas.config"],
        "super.users": "User:admin;User:ANONYMOUS",
        "auto.create.topics.enable": "true",
        "log.dirs": str(folder / "data"),
    }
    del settings["sasl.jaas.config"]
    nodes = KafkaNodes(folder, libraries=libraries)
    nodes.add(1, settings)
    nodes.launch(1)
    return nodes


def prepare(bootstrap: str, deadline: float) -> None:
    """A topic and the coordinators' topics, as soon as the broker answers."""
    while True:
        try:
            body = {**requests_of("CreateTopics", "secret", None), "timeout": 10_000}
            ask(bootstrap, "admin", BY_NAME["CreateTopics"], 7, body)
            for key_type in (0, 1):
                ask(
                    bootstrap, "admin", BY_NAME["FindCoordinator"], 3, {"key": "secret", "key_type": key_type}
                )
            return
        except ClientFault:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def main() -> int:
    libraries = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        kafka = start_kafka(Path(folder), libraries)
        try:
            with RunningBroker({**SETTINGS, "auto.create.topics.enable": "true"}, mode="process") as broker:
                both = (KAFKA, broker.bootstrap)
                for bootstrap in both:
                    prepare(bootstrap, time.monotonic() + 60)
                time.sleep(3)
                count = compare(broker.bootstrap, "mallory", "nothing")
                allow(both, (2, "secret", 3, 8), (3, "secret", 3, 8), (5, "secret", 3, 8))
                count += compare(broker.bootstrap, "alice", "describe")
                allow(both, (2, "sec", 4, 3), (3, "sec", 4, 3), (4, "kafka-cluster", 3, 8))
                count += compare(broker.bootstrap, "alice", "read, describe the cluster")
        finally:
            kafka.close()
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

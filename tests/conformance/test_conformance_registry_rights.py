"""Logins and rights of a schema registry are those of the cluster: its users, its ACLs, its super users.

The registry itself runs as a user with the rights that docs/registry.md lists, and no others.
"""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conformance.drivers.contract import DEADLINE_SECONDS
from tests.support.registry_process import RegistryProcess
from tidelog.client.cluster_logins import TRIES_MAX
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.testing.broker import RunningBroker

USERS = ("admin", "registry", "alice", "bob", "carol", "mallory")
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="secret of admin" '
        + " ".join(f'user_{user}="secret of {user}"' for user in USERS)
        + ";"
    ),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
#: what docs/registry.md says that the registry's user needs
OWN = (
    *(
        (TOPIC, "_schemas", operation)
        for operation in ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
    ),
    *((GROUP, "schema-registry", operation) for operation in ("READ", "DESCRIBE")),
    (GROUP, "_schemas-reader", "READ"),
    *((TRANSACTION, "tidelog-registry-_schemas", operation) for operation in ("DESCRIBE", "WRITE")),
)
#: alice produces orders, bob reads them, carol looks after the registry; mallory has a password and no rights
USERS_RIGHTS = (
    ("alice", "orders", "WRITE"),
    ("bob", "orders", "READ"),
    ("carol", "_schemas", "READ"),
    ("carol", "_schemas", "DELETE"),
    ("carol", "_schemas", "ALTER_CONFIGS"),
)
INT = {"schema": '"int"'}
VERSIONS = "/subjects/orders-value/versions"


def properties_of(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
    }


def allow(bootstrap: str, rows: list[tuple[str, Any, str, str]]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **properties_of("admin")})
    bindings = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for user, kind, name, operation in rows
    ]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def registry(oracle: bool) -> Iterator[RegistryProcess]:
    if oracle:
        pytest.skip("needs a broker with users of its own")
    with RunningBroker(SETTINGS, mode="process") as broker:
        allow(broker.bootstrap, [("registry", *row) for row in OWN])
        allow(broker.bootstrap, [(user, TOPIC, name, operation) for user, name, operation in USERS_RIGHTS])
        with RegistryProcess(broker.bootstrap, properties_of("registry")) as registry:
            yield registry


class Person:
    """Somebody with a name and a password."""

    def __init__(self, registry: RegistryProcess, name: str, password: str | None = None) -> None:
        auth = (name, f"secret of {name}" if password is None else password)
        self._http = httpx2.Client(base_url=registry.url, auth=auth, timeout=DEADLINE_SECONDS)

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self._http.request(method, path, json=body).status_code

    def get(self, path: str) -> Any:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_nobody_comes_in_without_a_password(registry: RegistryProcess) -> None:
    bare = httpx2.get(f"{registry.url}/subjects")
    assert bare.status_code == 401 and bare.headers["www-authenticate"].startswith("Basic")
    assert bare.json()["error_code"] == 401
    assert Person(registry, "alice", "wrong").status("GET", "/subjects") == 401
    assert Person(registry, "nobody").status("GET", "/subjects") == 401
    assert Person(registry, "alice", "").status("GET", "/subjects") == 401
    assert httpx2.get(f"{registry.url}/subjects", headers={"authorization": "Basic %%%"}).status_code == 401
    assert httpx2.get(f"{registry.url}/subjects", headers={"authorization": "Bearer x"}).status_code == 401
    assert httpx2.get(f"{registry.url}/healthz").status_code == 200


def test_a_subject_has_the_rights_of_its_topic(registry: RegistryProcess) -> None:
    alice, bob, mallory = (Person(registry, name) for name in ("alice", "bob", "mallory"))
    assert bob.status("POST", VERSIONS, INT) == 403
    assert mallory.status("POST", VERSIONS, INT) == 403
    assert alice.status("POST", VERSIONS, INT) == 200
    assert alice.status("POST", "/subjects/orders-key/versions", INT) == 200
    assert alice.status("POST", "/subjects/orders/versions", INT) == 200
    assert alice.status("POST", "/subjects/payments-value/versions", INT) == 403
    assert alice.status("POST", "/subjects/orders-value-value/versions", INT) == 403
    assert (
        Person(registry, "admin").status("POST", "/subjects/payments-value/versions", {"schema": '"long"'})
        == 200
    )
    for name in ("a%20b", "%C3%BC", "x" * 300, ":.c:payments", ":.c:"):
        assert alice.status("POST", f"/subjects/{name}/versions", INT) in (403, 422), (
            "no topic could be named so"
        )
        assert alice.status("GET", f"/subjects/{name}/versions") == 403
    assert alice.status("POST", "/subjects/:.c:orders-value/versions", INT) == 200, "a topic's in any context"
    for reader in (alice, bob):
        assert reader.get(VERSIONS) == [1]
        found = [":.c:orders-value", "orders", "orders-key", "orders-value"]
        assert reader.get("/subjects") == found, "others' are not listed"
        assert reader.get("/schemas/ids/1")["schema"] == '"int"'
        assert reader.status("GET", "/schemas/ids/2") == 403
        assert reader.status("POST", "/subjects/orders-value", INT) == 200
        assert reader.status("POST", f"/compatibility{VERSIONS}/latest", INT) == 200
        assert {row["subject"] for row in reader.get("/schemas")} == set(found)
    assert mallory.get("/subjects") == []
    assert mallory.get("/schemas") == []
    guid = alice.get("/schemas/ids/1")["guid"]
    for path in (
        "/schemas/ids/1",
        "/schemas/ids/1/schema",
        f"/schemas/guids/{guid}",
        VERSIONS,
        f"{VERSIONS}/1",
    ):
        assert mallory.status("GET", path) == 403, path
    assert mallory.status("POST", "/subjects/orders-value", INT) == 403
    assert mallory.status("POST", f"/compatibility{VERSIONS}/latest", INT) == 403
    assert mallory.status("GET", "/config/orders-value") == 403


def test_deleting_and_settings_need_more(registry: RegistryProcess) -> None:
    admin, alice, carol = (Person(registry, name) for name in ("admin", "alice", "carol"))
    for subject in ("gone-value", "kept-value"):
        assert admin.status("POST", f"/subjects/{subject}/versions", INT) == 200
    for path in ("/subjects/orders-value", f"{VERSIONS}/1", "/subjects/orders-value?permanent=true"):
        assert alice.status("DELETE", path) == 403
    for path in ("/config", "/config/orders-value", "/mode", "/mode/orders-value", "/config/:.c:"):
        assert alice.status("PUT", path, {"compatibility": "NONE", "mode": "READONLY"}) == 403
        assert alice.status("DELETE", path) == 403
    assert alice.status("DELETE", "/contexts/.c") == 403
    assert carol.status("PUT", "/config/gone-value", {"compatibility": "NONE"}) == 200
    assert carol.status("PUT", "/config", {"compatibility": "FULL"}) == 200
    assert carol.status("POST", "/subjects/gone-value/versions", {"schema": '"string"'}) == 403, (
        "she writes nothing"
    )
    assert "kept-value" in carol.get("/subjects")
    assert carol.status("DELETE", "/subjects/gone-value") == 200
    assert carol.status("DELETE", "/subjects/gone-value?permanent=true") == 200


def test_guessing_is_slow_and_keeps_nobody_else_out(registry: RegistryProcess) -> None:
    bob = Person(registry, "bob")
    assert bob.status("GET", "/subjects") == 200
    guesser = Person(registry, "bob", "guess")
    began = time.monotonic()
    found = [guesser.status("GET", "/subjects") for _ in range(TRIES_MAX + 2)]
    assert found[:TRIES_MAX] == [401] * TRIES_MAX
    assert found[TRIES_MAX:] == [429] * 2
    assert time.monotonic() - began < DEADLINE_SECONDS
    assert bob.status("GET", "/subjects") == 200, "who is known already is not kept out"
    assert Person(registry, "alice").status("GET", "/subjects") == 200

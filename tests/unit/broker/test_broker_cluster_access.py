"""ACLs and quotas in a cluster: given anywhere, they count everywhere, without a restart and after one."""

from typing import Any

from tests.support.in_memory_cluster import InMemoryCluster
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.controller.commands import AlterClientQuotas, CreateAcls, DeleteAcls, QuotaChange
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.model.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

SETTINGS: dict[str, Any] = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:ANONYMOUS"}
RIGHT = AclBinding(
    ResourceType.TOPIC,
    "ord",
    PatternType.PREFIXED,
    "User:alice",
    "*",
    AclOperation.READ,
    PermissionType.ALLOW,
)
LIMIT = AlterClientQuotas((QuotaChange((("user", "alice"),), (("producer_byte_rate", 1000.0),)),))


def may_read(cluster: InMemoryCluster) -> list[bool]:
    """Whether alice may read orders, as each broker sees it."""
    alice = ConnectionContext("10.0.0.1", 1, "PLAINTEXT")
    alice.principal = "User:alice"
    answers = []
    for node in cluster.nodes.values():
        assert node.broker.authorization is not None
        answers.append(
            node.broker.authorization.allows(alice, AclOperation.READ, ResourceType.TOPIC, "orders")
        )
    return answers


def submit(cluster: InMemoryCluster, node_id: int, command: Any) -> None:
    results: list[Any] = []
    cluster.nodes[node_id].broker.metadata.submit(command, results.extend)
    cluster.run_until(lambda: bool(results))
    assert "Refused" not in repr(results), results


def test_rights_and_limits_count_on_every_broker() -> None:
    cluster = InMemoryCluster(seed=6, **SETTINGS)
    assert may_read(cluster) == [False] * 3
    for node_id in cluster.nodes:
        submit(cluster, node_id, CreateAcls((RIGHT,)))
        cluster.run_until(lambda: may_read(cluster) == [True] * 3)
        submit(cluster, node_id, DeleteAcls((AclFilter(principal="User:alice"),)))
        cluster.run_until(lambda: may_read(cluster) == [False] * 3)
    submit(cluster, max(cluster.nodes), LIMIT)
    cluster.run_until(lambda: all(node.broker.quotas.current is not None for node in cluster.nodes.values()))


def test_a_broker_that_comes_back_knows_them() -> None:
    cluster = InMemoryCluster(seed=7, **SETTINGS)
    submit(cluster, 1, CreateAcls((RIGHT,)))
    submit(cluster, 1, LIMIT)
    cluster.kill(3)
    cluster.run_for(20_000)
    cluster.restart(3)
    cluster.run_until(lambda: may_read(cluster) == [True] * 3)
    assert cluster.nodes[3].broker.quotas.current is not None

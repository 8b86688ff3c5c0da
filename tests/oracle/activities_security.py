"""Rights, quotas, users and tokens; and a user who may little."""

from typing import Any

from tests.oracle.activities_consuming import fetch_fields, fetch_topic
from tests.oracle.activities_producing import batch, produce
from tests.oracle.generator import Activity, Builder
from tests.oracle.session import Json, name, raw


def acl(b: Builder) -> dict[str, Json]:
    return {
        "resource_type": b.choose(2, 2, 2, 3, 5, 4, 0, 1, 6),
        "resource_name": b.choose(name("t0"), name("t"), name("c0"), "kafka-cluster", "*", ""),
        "resource_pattern_type": b.choose(3, 3, 4, 4, 0, 1, 2),
        "principal": b.choose(name("User"), "User:alice", "User:bob", "alice", "User:*", ""),
        "host": b.choose("*", "*", "127.0.0.1", ""),
        "operation": b.choose(3, 4, 8, 2, 10, 1, 0, 13),
        "permission_type": b.choose(3, 3, 2, 1, 0),
    }


def own_acl(b: Builder) -> dict[str, Json]:
    """A right on something of this session alone."""
    return {
        "resource_type": b.choose(2, 2, 3, 5),
        "resource_name": b.choose(name("t0"), name("t"), name("c"), name("x")),
        "resource_pattern_type": b.choose(3, 4),
        "principal": b.choose("User:alice", "User:alice", "User:bob", "User:*"),
        "host": b.choose("*", "*", "127.0.0.1", "10.0.0.1"),
        "operation": b.choose(2, 3, 4, 8, 6, 7),
        "permission_type": b.choose(3, 3, 3, 2),
    }


def create_acls(b: Builder) -> None:
    b.acls = True
    b.ask("CreateAcls", {"creations": [own_acl(b) for _ in range(b.choose(1, 2, 3))]})


def granted(b: Builder) -> None:
    """A right on a topic, by its name or by how it begins, and what its user may do then."""
    topic = b.topics[0]
    prefixed = b.chance(0.5)
    row = {
        "resource_type": 2,
        "resource_name": name(topic.alias[:1] if prefixed else topic.alias),
        "resource_pattern_type": 4 if prefixed else 3,
        "principal": "User:alice",
        "host": "*",
        "operation": b.choose(2, 3, 4),
        "permission_type": 3,
    }
    b.acls = True
    b.ask("CreateAcls", {"creations": [row]})
    produce(b, [(topic, b.partition(topic), [batch(b)])], connection="alice")
    b.ask("Fetch", fetch_fields(b, [fetch_topic(b, topic)]), connection="alice")


def create_acls_oddly(b: Builder) -> None:
    """Rights that are refused: what is left of them is on things of this session."""
    row = acl(b)
    if isinstance(row["resource_name"], str):
        row["permission_type"] = b.choose(0, 1)
    b.acls = True
    b.ask("CreateAcls", {"creations": [row]})


def acl_filter(b: Builder) -> dict[str, Json]:
    return {
        "resource_type_filter": b.choose(1, 2, 3, 5),
        "resource_name_filter": b.choose(name("t0"), name("t1"), name("c0"), name("t")),
        "pattern_type_filter": b.choose(1, 2, 3, 4),
        "principal_filter": b.choose(None, None, "User:alice", "User:*"),
        "host_filter": b.choose(None, None, "*"),
        "operation": b.choose(1, 1, 3, 4),
        "permission_type": b.choose(1, 1, 3, 2),
    }


def describe_acls(b: Builder) -> None:
    fields = acl_filter(b)
    if b.chance(0.3):
        fields |= {"resource_name_filter": None, "pattern_type_filter": 1}
    if b.chance(0.15):
        fields |= b.choose(
            {"operation": 0}, {"pattern_type_filter": 0}, {"resource_type_filter": 0}, {"permission_type": 0}
        )
    b.ask("DescribeAcls", fields)


def delete_acls(b: Builder) -> None:
    b.ask("DeleteAcls", {"filters": [acl_filter(b) for _ in range(b.choose(1, 1, 2))]})


def as_user(b: Builder) -> None:
    """The same requests by somebody who may only what the rights say."""
    user = b.choose("alice", "alice", "bob")
    topic = b.topic()
    kind = b.choose(
        "metadata",
        "produce",
        "fetch",
        "offsets",
        "create",
        "delete",
        "join",
        "describe",
        "configs",
        "commit",
        "txn",
        "acls",
        "cluster",
    )
    if kind == "metadata":
        fields: dict[str, Json] = {
            "topics": [{"name": name(topic.alias)}, {"name": name("absent")}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        }
        b.ask("Metadata", fields, version=b.version("Metadata", 4), connection=user)
    elif kind == "produce":
        produce(b, [(topic, b.partition(topic), [batch(b)])], acks=b.choose(-1, 1), connection=user)
    elif kind == "fetch":
        b.ask("Fetch", fetch_fields(b, [fetch_topic(b, topic)]), connection=user)
    elif kind == "offsets":
        row: dict[str, Any] = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        b.ask(
            "ListOffsets",
            {"replica_id": -1, "topics": [{"name": name(topic.alias), "partitions": [row]}]},
            connection=user,
        )
    elif kind == "create":
        row = {
            "name": name("tuser"),
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        b.ask("CreateTopics", {"topics": [row], "timeout": 10_000, "validate_only": True}, connection=user)
    elif kind == "delete":
        b.ask(
            "DeleteTopics",
            {
                "topics": [{"name": name("absent"), "topic_id": None}],
                "topic_names": [name("absent")],
                "timeout": 10_000,
            },
            connection=user,
        )
    elif kind == "join":
        b.ask(
            "Heartbeat", {"group_id": name("c0"), "generation_id": 1, "member_id": "nobody"}, connection=user
        )
    elif kind == "describe":
        b.ask(
            "DescribeGroups",
            {"groups": [name("c0"), name("gabsent")], "include_authorized_operations": True},
            connection=user,
        )
    elif kind == "configs":
        b.ask(
            "DescribeConfigs",
            {
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": name(topic.alias),
                        "configuration_keys": ["retention.ms"],
                    }
                ]
            },
            connection=user,
        )
    elif kind == "commit":
        part = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        b.ask(
            "OffsetCommit",
            {
                "group_id": name("g0"),
                "generation_id": -1,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "topics": [{"name": name(topic.alias), "topic_id": topic.id, "partitions": [part]}],
            },
            connection=user,
        )
        b.groups.setdefault("g0", {"kind": "offsets"})
    elif kind == "txn":
        b.ask(
            "InitProducerId",
            {
                "transactional_id": b.choose(name("x0"), None),
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            connection=user,
        )
        if "x0" not in b.transactional_ids:
            b.transactional_ids.append("x0")
    elif kind == "acls":
        b.ask("DescribeAcls", acl_filter(b), connection=user)
    else:
        b.ask(
            "DescribeCluster",
            {"include_cluster_authorized_operations": True, "endpoint_type": 1},
            connection=user,
        )


def quotas(b: Builder) -> None:
    """Limits of users and clients of this session, set, shown and removed."""
    entity = b.choose(
        [{"entity_type": "user", "entity_name": name("u0")}],
        [{"entity_type": "client-id", "entity_name": name("k0")}],
        [
            {"entity_type": "user", "entity_name": name("u0")},
            {"entity_type": "client-id", "entity_name": name("k0")},
        ],
        [
            {"entity_type": "user", "entity_name": name("u0")},
            {"entity_type": "client-id", "entity_name": None},
        ],
        [{"entity_type": "nonsense", "entity_name": name("u0")}],
        [{"entity_type": "user", "entity_name": ""}],
        [{"entity_type": "ip", "entity_name": name("ip")}],
        [],
    )
    key = b.choose(
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
        "nonsense",
        "connection_creation_rate",
    )
    operation = {"key": key, "value": b.choose(1024.0, 1.5, 0.0, -1.0, 1e12), "remove": b.chance(0.2)}
    if entity not in b.quotas:
        b.quotas.append(entity)
    b.ask(
        "AlterClientQuotas",
        {"entries": [{"entity": entity, "ops": [operation]}], "validate_only": b.chance(0.2)},
    )
    describe_quotas(b)


def describe_quotas(b: Builder) -> None:
    components = b.choose(
        [{"entity_type": "user", "match_type": 0, "match": name("u0")}],
        [
            {"entity_type": "user", "match_type": 0, "match": name("u0")},
            {"entity_type": "client-id", "match_type": 1, "match": None},
        ],
        [{"entity_type": "client-id", "match_type": 2, "match": None}],
        [{"entity_type": "client-id", "match_type": 0, "match": name("k0")}],
        [{"entity_type": "nonsense", "match_type": 0, "match": "x"}],
        [{"entity_type": "user", "match_type": 9, "match": "x"}],
        [
            {"entity_type": "user", "match_type": 1, "match": None},
            {"entity_type": "user", "match_type": 2, "match": None},
        ],
        [],
    )
    b.ask("DescribeClientQuotas", {"components": components, "strict": b.chance(0.3)})


def scram(b: Builder) -> None:
    """Users with passwords."""
    user = b.choose(name("u0"), name("u1"), name("u2"), "")
    row = {
        "name": user,
        "mechanism": b.choose(1, 2, 2, 0, 3),
        "iterations": b.choose(4096, 4096, 4095, 16384, 16385),
        "salt": raw(b"salt"),
        "salted_password": raw(b"p" * 32),
    }
    deletions = (
        [{"name": b.choose(name("u0"), name("uabsent")), "mechanism": b.choose(1, 2)}]
        if b.chance(0.3)
        else []
    )
    b.ask(
        "AlterUserScramCredentials", {"deletions": deletions, "upsertions": [row] if b.chance(0.85) else []}
    )
    b.users = ["u0", "u1", "u2"]
    b.ask(
        "DescribeUserScramCredentials",
        {
            "users": b.choose(
                [{"name": name("u0")}, {"name": name("uabsent")}],
                [{"name": name("u1")}, {"name": name("u1")}],
                [{"name": name("u2")}],
            )
        },
    )


def tokens(b: Builder) -> None:
    """Delegation tokens: refused to whoever did not log in."""
    connection = b.choose("c0", "alice")
    kind = b.choose("create", "renew", "expire", "describe")
    if kind == "create":
        fields: dict[str, Json] = {
            "owner_principal_type": "",
            "owner_principal_name": "",
            "renewers": b.choose(
                [],
                [{"principal_type": "User", "principal_name": "bob"}],
                [{"principal_type": "Group", "principal_name": "bob"}],
            ),
            "max_lifetime": b.choose(-1, 60_000),
        }
        b.ask("CreateDelegationToken", fields, connection=connection)
    elif kind == "renew":
        b.ask(
            "RenewDelegationToken",
            {"hmac": raw(b"nothing"), "renew_period": b.choose(-1, 1000)},
            connection=connection,
        )
    elif kind == "expire":
        b.ask(
            "ExpireDelegationToken",
            {"hmac": raw(b"nothing"), "expiry_time_period": -1},
            connection=connection,
        )
    else:
        b.ask(
            "DescribeDelegationToken",
            {"owners": [{"principal_type": "User", "principal_name": name("nobody")}]},
            connection=connection,
        )


def sasl(b: Builder) -> None:
    """A login where there is none."""
    if b.chance(0.5):
        b.ask("SaslHandshake", {"mechanism": b.choose("PLAIN", "nonsense")}, connection="c2")
    else:
        b.ask("SaslAuthenticate", {"auth_bytes": raw(b"\0alice\0secret")}, connection="c2")


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.0, create_acls),
    (0.8, granted),
    (0.6, create_acls_oddly),
    (0.8, describe_acls),
    (0.5, delete_acls),
    (2.5, as_user),
    (1.0, quotas),
    (0.5, describe_quotas),
    (0.8, scram),
    (0.5, tokens),
    (0.3, sasl),
]

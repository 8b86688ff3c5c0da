"""The end of a session: everything that it made is read back, and then removed.

What is read back is compared like every other answer: the logs from their first offset, with and without what
is not committed, their bounds and producers; offsets, members and states of groups; transactions.
"""

from collections.abc import Callable

from tests.oracle.activities_share_admin import describe_group_offsets
from tests.oracle.activities_shares import Shared, close, read_rest, shares
from tests.oracle.generator import Builder
from tests.oracle.session import Json, name


def read_back(b: Builder) -> None:
    """The state that the systems ended up with."""
    living = [topic for topic in b.topics if not topic.deleted]
    for topic in living:
        numbers = range(topic.partitions)
        for isolation_level in (0, 1):
            fields = {
                "replica_id": -1,
                "replica_state": {"replica_id": -1, "replica_epoch": -1},
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": 1 << 24,
                "isolation_level": isolation_level,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [
                    {
                        "topic": name(topic.alias),
                        "topic_id": topic.id,
                        "partitions": [_from_the_start(number) for number in numbers],
                    }
                ],
                "forgotten_topics_data": [],
                "rack_id": "",
            }
            b.ask("Fetch", fields)
        for time in (-1, -2, -3):
            rows = [
                {"partition_index": number, "timestamp": time, "current_leader_epoch": -1}
                for number in numbers
            ]
            b.ask(
                "ListOffsets",
                {
                    "replica_id": -1,
                    "isolation_level": b.choose(0, 1),
                    "topics": [{"name": name(topic.alias), "partitions": rows}],
                },
                version=b.version("ListOffsets", 7),
            )
    for together in [[topic] for topic in living] if b.several else [living] if living else []:
        wanted = [
            {"name": name(topic.alias), "partition_indexes": list(range(topic.partitions))}
            for topic in together
        ]
        b.ask("DescribeProducers", {"topics": wanted})
    every = [name(alias) for alias in b.groups]
    for groups in [[group] for group in every] if b.several else [every] if every else []:
        asked = [
            {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1} for group in groups
        ]
        b.ask("OffsetFetch", {"groups": asked}, version=b.version("OffsetFetch", 8, 9))
        b.ask("DescribeGroups", {"groups": groups})
        b.ask("ConsumerGroupDescribe", {"group_ids": groups})
    for shared in shares(b):
        for member in shared.members:
            if member.session:
                close(b, shared, member)
        read_rest(b, shared)
        describe_group_offsets(b, shared)
        fields = {"group_ids": [name(shared.alias)], "include_authorized_operations": False}
        b.ask("ShareGroupDescribe", fields)
    ids = [name(one) for one in b.transactional_ids]
    for known in [[one] for one in ids] if b.several else [ids] if ids else []:
        b.ask("DescribeTransactions", {"transactional_ids": known})


def _from_the_start(partition: int) -> Json:
    return {
        "partition": partition,
        "fetch_offset": 0,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 24,
    }


def clean_up(b: Builder) -> None:
    """Everything goes, so that the next session meets an empty system."""

    def last(api: str, fields: dict[str, Json]) -> None:
        b.ask(api, fields, version=b.versions[api][1], cleanup=True, settle=False)

    own = {topic.alias: topic for shared in shares(b) for topic in shared.topics}
    living = [topic.alias for topic in [*b.topics, *own.values()] if not topic.deleted]
    for alias in b.groups:
        group = b.groups[alias]
        if isinstance(group, Shared):
            _leave_shared(group, last)
            continue
        for member in getattr(group, "members", []):
            if getattr(group, "kind", "") == "classic":
                last(
                    "LeaveGroup",
                    {
                        "group_id": name(alias),
                        "members": [
                            {
                                "member_id": member.id if member.instance is None else "",
                                "group_instance_id": member.instance,
                            }
                        ],
                    },
                )
    last(
        "DeleteTopics",
        {
            "topics": [{"name": name(alias), "topic_id": None} for alias in [*living, "absent"]],
            "timeout": 10_000,
        },
    )
    names = [name(alias) for alias in b.groups]
    for groups in [[group] for group in names] if b.several else [names] if names else []:
        last("DeleteGroups", {"groups_names": groups})
    if b.acls:
        everything = {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
        }
        filters = [{**everything, "resource_name_filter": name(one)} for one in ("t0", "t", "c", "c0", "x")]
        last(
            "DeleteAcls",
            {
                "filters": [
                    *filters,
                    {**everything, "resource_name_filter": None, "principal_filter": name("User")},
                ]
            },
        )
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
    for entity in b.quotas:
        last(
            "AlterClientQuotas",
            {
                "entries": [
                    {"entity": entity, "ops": [{"key": key, "value": 0.0, "remove": True} for key in keys]}
                ]
            },
        )
    if b.users:
        last(
            "AlterUserScramCredentials",
            {
                "deletions": [
                    {"name": name(user), "mechanism": mechanism} for user in b.users for mechanism in (1, 2)
                ],
                "upsertions": [],
            },
        )


def _leave_shared(group: Shared, last: Callable[[str, dict[str, Json]], None]) -> None:
    """Members and settings of a share group go, so that it can be deleted."""
    for member in group.members:
        fields = {"group_id": name(group.alias), "member_id": member.id, "member_epoch": -1}
        last("ShareGroupHeartbeat", {**fields, "rack_id": None, "subscribed_topic_names": None})
    rows = [{"name": key, "config_operation": 1, "value": None} for key in sorted(group.settings)]
    resource = {"resource_type": 32, "resource_name": name(group.alias), "configs": rows}
    if rows:
        last("IncrementalAlterConfigs", {"resources": [resource], "validate_only": False})

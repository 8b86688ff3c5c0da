"""Operations of librdkafka's admin client: as far as it has them, those of the Java driver."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

Json = Any
SECONDS_MAX = 60.0
_SPECS = {
    "earliest": OffsetSpec.earliest,
    "latest": OffsetSpec.latest,
    "max_timestamp": OffsetSpec.max_timestamp,
}
_TYPES = {
    "TOPIC": ResourceType.TOPIC,
    "GROUP": ResourceType.GROUP,
    "BROKER": ResourceType.BROKER,
    "CLUSTER": ResourceType.BROKER,
    "TRANSACTIONAL_ID": ResourceType.TRANSACTIONAL_ID,
    "ANY": ResourceType.ANY,
}


def _key(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _done(_: Any) -> Json:
    return "done"


def _binding(kind: type, row: list[Json]) -> Any:
    resource, name, pattern, principal, host, operation, permission = row
    return kind(
        _TYPES[resource],
        name,
        ResourcePatternType[pattern],
        principal,
        host,
        AclOperation[operation],
        AclPermissionType[permission],
    )


class AdminOperations:
    """Each operation takes its fields and returns an outcome."""

    def __init__(
        self,
        admin: Callable[[dict[str, Json]], AdminClient],
        failure: Callable[[BaseException], Json],
    ) -> None:
        self._admin = admin
        self._failure = failure

    def _future(self, future: "Future[Any]", shown: Callable[[Any], Json]) -> Json:
        try:
            return shown(future.result(SECONDS_MAX))
        except (KafkaException, ValueError) as fault:
            return self._failure(fault)

    def _each(
        self,
        futures: "dict[Any, Future[Any]]",
        shown: Callable[[Any], Json],
        name: Callable[[Any], str] = str,
    ) -> Json:
        return {name(key): self._future(futures[key], shown) for key in sorted(futures, key=name)}

    def new_admin(self, fields: dict[str, Json]) -> Json:
        self._admin(fields)
        return "done"

    # Topics

    def create_topics(self, fields: dict[str, Json]) -> Json:
        topics = []
        for row in fields["topics"]:
            options: dict[str, Json] = {"config": row.get("configs", {})}
            if "assignments" in row:
                options["replica_assignment"] = [
                    row["assignments"][str(index)] for index in range(len(row["assignments"]))
                ]
                options["num_partitions"] = len(row["assignments"])
            else:
                options |= {
                    "num_partitions": row.get("partitions", -1),
                    "replication_factor": row.get("replicas", -1),
                }
            topics.append(NewTopic(row["name"], **options))
        done = self._admin(fields).create_topics(topics, validate_only=fields.get("validate_only", False))
        return self._each(done, _done)

    def delete_topics(self, fields: dict[str, Json]) -> Json:
        return self._each(self._admin(fields).delete_topics(fields["topics"]), _done)

    def describe_topics(self, fields: dict[str, Json]) -> Json:
        return self._each(
            self._admin(fields).describe_topics(TopicCollection(fields["topics"])), _shown_topic
        )

    def list_topics(self, fields: dict[str, Json]) -> Json:
        found = self._admin(fields).list_topics(timeout=SECONDS_MAX)
        return [
            {"name": topic.topic, "partitions": len(topic.partitions)}
            for topic in sorted(found.topics.values(), key=lambda topic: str(topic.topic))
        ]

    def create_partitions(self, fields: dict[str, Json]) -> Json:
        wanted = [NewPartitions(topic, total) for topic, total in fields["topics"].items()]
        options = {"validate_only": fields.get("validate_only", False)}
        return self._each(self._admin(fields).create_partitions(wanted, **options), _done)

    # Configs

    def describe_configs(self, fields: dict[str, Json]) -> Json:
        resources = [ConfigResource(_TYPES[kind], name) for kind, name in fields["resources"]]
        return self._each(self._admin(fields).describe_configs(resources), _shown_configs, _resource_name)

    def alter_configs(self, fields: dict[str, Json]) -> Json:
        changes: dict[tuple[str, str], list[ConfigEntry]] = {}
        for kind, name, operation, setting, *value in fields["changes"]:
            changes.setdefault((kind, name), []).append(
                ConfigEntry(
                    setting, value[0] if value else None, incremental_operation=AlterConfigOpType[operation]
                )
            )
        resources = [
            ConfigResource(_TYPES[kind], name, incremental_configs=entries)
            for (kind, name), entries in changes.items()
        ]
        options = {"validate_only": fields.get("validate_only", False)}
        done = self._admin(fields).incremental_alter_configs(resources, **options)
        return self._each(done, _done, _resource_name)

    # Offsets

    def list_offsets(self, fields: dict[str, Json]) -> Json:
        wanted = {
            TopicPartition(topic, partition): (
                _SPECS[spec]() if isinstance(spec, str) else OffsetSpec.for_timestamp(spec)
            )
            for topic, partition, spec in fields["partitions"]
        }
        level = IsolationLevel.READ_COMMITTED if fields.get("committed") else IsolationLevel.READ_UNCOMMITTED
        found = self._admin(fields).list_offsets(wanted, isolation_level=level)
        return self._each(
            found,
            lambda info: {
                "offset": info.offset,
                "timestamp": info.timestamp,
                "leader_epoch": info.leader_epoch,
            },
            _key,
        )

    def ends(self, partitions: list[TopicPartition], committed_only: bool) -> dict[str, int]:
        """Where consumers come to the end of partitions."""
        if not partitions:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(one.topic, one.partition): OffsetSpec.latest() for one in partitions}
        found = self._admin({}).list_offsets(wanted, isolation_level=level)
        return {_key(one): future.result(SECONDS_MAX).offset for one, future in found.items()}

    def delete_records(self, fields: dict[str, Json]) -> Json:
        before = [TopicPartition(*row) for row in fields["before"]]
        done = self._admin(fields).delete_records(before)
        return self._each(done, lambda deleted: deleted.low_watermark, _key)

    # Groups

    def list_groups(self, fields: dict[str, Json]) -> Json:
        found = self._admin(fields).list_consumer_groups().result(SECONDS_MAX)
        return [
            {
                "group": group.group_id,
                "simple": group.is_simple_consumer_group,
                "state": group.state.name,
                "type": group.type.name,
            }
            for group in found.valid
        ]

    def describe_groups(self, fields: dict[str, Json]) -> Json:
        return self._each(self._admin(fields).describe_consumer_groups(fields["groups"]), _shown_group)

    def delete_groups(self, fields: dict[str, Json]) -> Json:
        return self._each(self._admin(fields).delete_consumer_groups(fields["groups"]), _done)

    def alter_group_offsets(self, fields: dict[str, Json]) -> Json:
        offsets = [TopicPartition(row[0], row[1], row[2]) for row in fields["offsets"]]
        wanted = [ConsumerGroupTopicPartitions(fields["group"], offsets)]
        return self._each(self._admin(fields).alter_consumer_group_offsets(wanted), self._shown_offsets)

    def list_group_offsets(self, fields: dict[str, Json]) -> Json:
        found: dict[str, Json] = {}
        for group in fields["groups"]:
            partitions = (
                [TopicPartition(*row) for row in fields["partitions"]] if "partitions" in fields else None
            )
            wanted = [ConsumerGroupTopicPartitions(group, partitions)]
            options = {"require_stable": fields.get("stable", False)}
            done = self._admin(fields).list_consumer_group_offsets(wanted, **options)
            found |= self._each(done, self._shown_offsets)
        return found

    def _shown_offsets(self, found: ConsumerGroupTopicPartitions) -> Json:
        return {
            _key(one): (
                self._failure(one.error)  # type: ignore[arg-type]
                if one.error
                else {
                    "offset": one.offset,
                    "metadata": one.metadata or "",
                    "leader_epoch": -1 if one.leader_epoch is None else one.leader_epoch,
                }
            )
            for one in sorted(found.topic_partitions or (), key=_key)
        }

    # The cluster

    def describe_cluster(self, fields: dict[str, Json]) -> Json:
        options = {"include_authorized_operations": fields.get("operations", False)}
        found = self._admin(fields).describe_cluster(**options).result(SECONDS_MAX)
        operations = found.authorized_operations
        return {
            "nodes": [
                {"id": node.id, "rack": node.rack} for node in sorted(found.nodes, key=lambda one: one.id)
            ],
            "operations": None if operations is None else sorted(one.name for one in operations),
        }

    def elect_leaders(self, fields: dict[str, Json]) -> Json:
        partitions = [TopicPartition(*row) for row in fields["partitions"]]
        found = (
            self._admin(fields).elect_leaders(ElectionType[fields["type"]], partitions).result(SECONDS_MAX)
        )
        return {
            _key(one): "elected" if fault is None else self._failure(fault)
            for one, fault in sorted(found.items(), key=lambda pair: _key(pair[0]))
        }

    # Rights

    def create_acls(self, fields: dict[str, Json]) -> Json:
        acls = [_binding(AclBinding, row) for row in fields["acls"]]
        return self._each(self._admin(fields).create_acls(acls), _done)

    def describe_acls(self, fields: dict[str, Json]) -> Json:
        found = self._admin(fields).describe_acls(_binding(AclBindingFilter, fields["filter"]))
        return self._future(found, lambda acls: sorted(map(str, acls)))

    def delete_acls(self, fields: dict[str, Json]) -> Json:
        filters = [_binding(AclBindingFilter, row) for row in fields["filters"]]
        return self._each(self._admin(fields).delete_acls(filters), lambda acls: sorted(map(str, acls)))

    def describe_scram(self, fields: dict[str, Json]) -> Json:
        found = self._admin(fields).describe_user_scram_credentials(fields["users"])
        return self._each(
            found,  # type: ignore[arg-type]
            lambda user: sorted(
                f"{one.mechanism.name} {one.iterations}" for one in user.scram_credential_infos
            ),
        )

    def alter_scram(self, fields: dict[str, Json]) -> Json:
        changes: list[Any] = []
        for user, mechanism, *iterations in fields["changes"]:
            kind = ScramMechanism[mechanism]
            if iterations:
                info = ScramCredentialInfo(kind, iterations[0])
                changes.append(UserScramCredentialUpsertion(user, info, b"a password"))
            else:
                changes.append(UserScramCredentialDeletion(user, kind))
        return self._each(self._admin(fields).alter_user_scram_credentials(changes), _done)


def _resource_name(resource: ConfigResource) -> str:
    return f"{resource.restype.name} {resource.name}"


def _shown_topic(topic: Any) -> Json:
    return {
        "id": str(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": one.id,
                "leader": None if one.leader is None else one.leader.id,
                "replicas": [node.id for node in one.replicas],
                "in_sync": [node.id for node in one.isr],
            }
            for one in topic.partitions
        ],
    }


def _shown_configs(entries: dict[str, ConfigEntry]) -> Json:
    return {
        name: {
            "value": entry.value,
            "source": entry.source,
            "read_only": entry.is_read_only,
            "sensitive": entry.is_sensitive,
        }
        for name, entry in sorted(entries.items())
    }


def _shown_group(group: Any) -> Json:
    alone = len(group.members) == 1
    return {
        "state": group.state.name,
        "type": group.type.name,
        "assignor": group.partition_assignor,
        "simple": group.is_simple_consumer_group,
        "coordinator": group.coordinator.id,
        "members": [
            {
                "client": member.client_id,
                "instance": member.group_instance_id,
                "host": member.host,
                "member_id": member.member_id,
                "assigned": (
                    sorted(map(_key, member.assignment.topic_partitions))
                    if alone
                    else len(member.assignment.topic_partitions)
                ),
            }
            for member in group.members
        ],
    }

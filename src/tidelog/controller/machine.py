"""The controller: commands in, metadata records and results out.

It is pure: it reads an image and decides, it keeps nothing and changes nothing. Whoever calls it makes the
records durable, applies them to the image and only then hands out the results. Randomness is an argument.
Errors, their order and their reasons are Kafka's; the wording is our own.
"""

import base64
from collections import Counter
from random import Random
from uuid import UUID

from tidelog.controller import (
    access,
    brokers,
    configs,
    credentials,
    directories,
    elections,
    isr_changes,
    reassignments,
    replica_logs,
    topics,
)
from tidelog.controller.commands import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterReassignments,
    AlterUsers,
    AssignReplicas,
    BrokersChanged,
    ChangeIsr,
    ChangeTokens,
    Command,
    CreateAcls,
    CreatePartitions,
    CreateTopics,
    Decision,
    DeleteAcls,
    DeleteTopics,
    Done,
    ElectLeaders,
    ElectOffline,
    FailDirectories,
    FormCluster,
    ProducerIdBlock,
    RebalanceLeaders,
    ReportReplicaLogs,
    Result,
    ShutDownBroker,
    TopicDeleted,
    TopicReference,
    UnregisterBroker,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import random_uuid
from tidelog.model.image import ClusterImage, TopicImage
from tidelog.model.metadata import (
    ClusterRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
)
from tidelog.model.settings import BrokerSettings

PRODUCER_ID_BLOCK_SIZE = 1000
_INT64_MAX = 2**63 - 1


def new_uuid(random: Random) -> UUID:
    """A random id that Kafka's tools can print: its base64 form does not begin with a dash."""
    while True:
        made = random_uuid(random)
        if not uuid_text(made).startswith("-"):
            return made


def uuid_text(value: UUID) -> str:
    """Kafka's way to write an id: 22 characters of base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


class Controller:
    """Decides what becomes of a command, given the image."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def handle(self, command: Command, image: ClusterImage, random: Random) -> Decision:
        """Decide one command; the image is the newest there is, since commands come one at a time."""
        match command:
            case CreateTopics():
                return topics.create_topics(command, image, self._settings, random, new_uuid)
            case DeleteTopics():
                return self._delete_topics(command, image)
            case CreatePartitions():
                return topics.create_partitions(command, image, self._settings, random)
            case AlterConfigs():
                return configs.alter_configs(command, image, self._settings)
            case FormCluster():
                if image.cluster_id:
                    return Decision((), (Done(),))
                cluster_id = command.cluster_id or uuid_text(new_uuid(random))
                return Decision((ClusterRecord(cluster_id),), (Done(),))
            case AllocateProducerIds():
                return self._allocate_producer_ids(command, image)
            case BrokersChanged():
                return brokers.brokers_changed(command, image, self._settings)
            case AssignReplicas():
                return directories.assign_replicas(command, image, self._settings)
            case FailDirectories():
                return directories.fail_directories(command, image, self._settings)
            case ChangeIsr():
                return isr_changes.change_isr(command, image, self._settings)
            case ElectLeaders():
                return elections.elect_leaders(command, image, self._settings)
            case ElectOffline():
                return elections.elect_offline(image, self._settings, command.impatient)
            case ReportReplicaLogs():
                return replica_logs.report_replica_logs(command, image, self._settings)
            case AlterReassignments():
                return reassignments.alter_reassignments(command, image, self._settings)
            case ShutDownBroker():
                return brokers.shut_down_broker(command, image, self._settings)
            case UnregisterBroker():
                return brokers.unregister_broker(command, image, self._settings)
            case RebalanceLeaders():
                return elections.rebalance_leaders(command, image, self._settings)
            case AlterUsers():
                return credentials.alter_users(command, image)
            case ChangeTokens():
                return credentials.change_tokens(command, image)
            case CreateAcls():
                return access.create_acls(command, image)
            case DeleteAcls():
                return access.delete_acls(command, image)
            case AlterClientQuotas():
                return access.alter_client_quotas(command, image)

    def _allocate_producer_ids(self, command: AllocateProducerIds, image: ClusterImage) -> Decision:
        first_id = image.next_producer_id
        if first_id > _INT64_MAX - PRODUCER_ID_BLOCK_SIZE:
            return Decision((), (Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up"),))
        record = ProducerIdsRecord(command.broker_id, first_id + PRODUCER_ID_BLOCK_SIZE)
        return Decision((record,), (ProducerIdBlock(first_id, PRODUCER_ID_BLOCK_SIZE),))

    def _delete_topics(self, command: DeleteTopics, image: ClusterImage) -> Decision:
        records: list[MetadataRecord] = []
        results: list[Result] = []
        if not self._settings.get_bool("delete.topic.enable"):
            refused = Refused(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            return Decision((), (refused,) * command.item_count)
        found = [referenced_topic(reference, image) for reference in command.topics]
        references = Counter(topic.name for topic in found if isinstance(topic, TopicImage))
        for topic in found:
            if isinstance(topic, Refused):
                results.append(topic)
            elif references[topic.name] > 1:
                results.append(
                    Refused(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named more than once")
                )
            else:
                records.append(
                    RemoveTopicRecord(topic.name, topic.topic_id, len(topic.partitions), bool(topic.configs))
                )
                results.append(TopicDeleted(topic.name, topic.topic_id))
        return Decision(tuple(records), tuple(results))


def referenced_topic(reference: TopicReference, image: ClusterImage) -> TopicImage | Refused:
    """The topic that is meant, by its name or by its id."""
    match reference:
        case TopicReference(name=None, topic_id=None):
            return Refused(ErrorCode.INVALID_REQUEST, "neither a topic name nor a topic id was given")
        case TopicReference(name=str(), topic_id=UUID()):
            return Refused(ErrorCode.INVALID_REQUEST, "both a topic name and a topic id were given")
        case TopicReference(name=str(name)):
            by_name = image.topics.get(name)
            unknown = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            return unknown if by_name is None else by_name
        case TopicReference(topic_id=topic_id):
            assert topic_id is not None
            by_id = image.topic_by_id(topic_id)
            unknown = Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(topic_id)}")
            return unknown if by_id is None else by_id

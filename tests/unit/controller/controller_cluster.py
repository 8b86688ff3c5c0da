"""Brokers 1 to n and their controller, for tests that tell small stories of a cluster."""

from dataclasses import replace
from random import Random
from typing import Any

from tidelog.controller.commands import (
    AlterConfigs,
    AlterReassignments,
    AssignReplicas,
    BrokersChanged,
    ChangeIsr,
    Command,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    CreateTopics,
    Done,
    ElectionType,
    ElectLeaders,
    IsrChange,
    LeadersElected,
    LiveBroker,
    Reassignment,
    ReplicaLog,
    ReplicaPlacement,
    ReportReplicaLogs,
    Result,
    TopicCreated,
    TopicSpec,
)
from tidelog.controller.machine import Controller
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition
from tidelog.model.image import ClusterImage, PartitionImage
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings

UNCLEAN = "unclean.leader.election.enable"
A0 = TopicPartition("a", 0)


class Cluster:
    """Brokers 1 to n, the controller, and the image its decisions lead to."""

    def __init__(self, broker_count: int = 3, **overrides: str) -> None:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        self.controller = Controller(BrokerSettings.resolve(named))
        self.random = Random(1)
        self.image = ClusterImage()
        self.sequence = 100
        self.live = {
            broker_id: LiveBroker(
                broker_id,
                "first",
                {"PLAINTEXT": Endpoint(f"b{broker_id}", 9092)},
                directories=(f"disk-{broker_id}",),
            )
            for broker_id in range(1, broker_count + 1)
        }
        self.lives()

    def run(self, command: Command) -> tuple[Result, ...]:
        decision = self.controller.handle(command, self.image, self.random)
        assert len(decision.results) == command.item_count
        if decision.records:
            self.image = self.image.apply(decision.records)
            self.image.check_invariants()
            self.sequence += 1
        return decision.results

    def lives(self, *broker_ids: int, incarnation: str = "first", **changes: Any) -> None:
        """Only these live now (all, if none is named); those that were not alive before get `incarnation`."""
        for broker_id in broker_ids:
            known = self.image.brokers.get(broker_id)
            if known is None or not known.alive:
                self.live[broker_id] = replace(self.live[broker_id], incarnation=incarnation, **changes)
        live = tuple(self.live[broker_id] for broker_id in broker_ids or self.live)
        assert self.run(BrokersChanged(live, self.sequence)) == (Done(),)

    def restarts(self, broker_id: int, incarnation: str = "second", **changes: Any) -> None:
        """A broker ends and begins again before the controller looks."""
        self.live[broker_id] = replace(self.live[broker_id], incarnation=incarnation, **changes)
        self.lives()

    def places(self, broker_id: int, directory: str) -> Result:
        """A broker tells where its replica of a-0 is."""
        placement = ReplicaPlacement(self.image.topics["a"].topic_id, 0, directory)
        [result] = self.run(AssignReplicas(broker_id, self.image.brokers[broker_id].epoch, (placement,)))
        return result

    def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        spec = TopicSpec(name, assignments=tuple(enumerate(replicas)), configs=named)
        [created] = self.run(CreateTopics((spec,)))
        assert isinstance(created, TopicCreated), created

    def states(self, topic: str) -> list[tuple[int, tuple[int, ...], int, int]]:
        return [state(partition) for partition in self.image.topics[topic].partitions]

    def a0(self) -> PartitionImage:
        partition = self.image.partition("a", 0)
        assert partition is not None
        return partition

    def change(self, isr: tuple[int, ...], broker_id: int | None = None, **changes: object) -> Result:
        """The leader of a-0 asks for an ISR."""
        partition = self.a0()
        sender = partition.leader if broker_id is None else broker_id
        change = IsrChange(
            self.image.topics["a"].topic_id, 0, partition.leader_epoch, partition.partition_epoch, isr
        )
        change = replace(change, **changes)  # type: ignore[arg-type]
        [result] = self.run(ChangeIsr(sender, self.image.brokers[sender].epoch, (change,)))
        return result

    def reassign(self, replicas: tuple[int, ...] | None, **options: bool) -> Result:
        [result] = self.run(AlterReassignments((Reassignment("a", 0, replicas),), **options))
        return result

    def elect(self, type: ElectionType, *partitions: TopicPartition) -> Refused | None:
        [elected] = self.run(ElectLeaders(type, partitions))
        assert isinstance(elected, LeadersElected)
        [(_, refused)] = elected.outcomes
        return refused

    def report(self, topic: str, **logs: tuple[int, int]) -> None:
        """Brokers say how long their logs of a topic's first partition are: b1=(last epoch, log end)."""
        found = self.image.topics[topic]
        for name, (last_epoch, end_offset) in logs.items():
            broker_id = int(name[1:])
            log = ReplicaLog(found.topic_id, 0, found.partitions[0].leader_epoch, last_epoch, end_offset)
            epoch = self.image.brokers[broker_id].epoch
            assert self.run(ReportReplicaLogs(broker_id, epoch, (log,))) == (Done(),)

    def allow_unclean(self, type: ConfigResourceType, name: str) -> None:
        change = ConfigChange(UNCLEAN, ConfigOperation.SET, "true")
        assert self.run(AlterConfigs((ConfigChanges(type, name, (change,)),))) == (Done(),)


def code(result: Result | None) -> ErrorCode:
    return result.code if isinstance(result, Refused) else ErrorCode.NONE


def state(partition: PartitionImage) -> tuple[int, tuple[int, ...], int, int]:
    return partition.leader, partition.isr, partition.leader_epoch, partition.partition_epoch


# ------------------------------------------------------------ brokers

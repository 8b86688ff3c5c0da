"""What holds after every decision, whatever happens in whatever order.

A world of brokers that start, die, lose power, log directories or the records of single logs, find
directories again, move replicas between them and come back is played from a seed. It keeps book of the
copies: a write is committed when every member of the ISR has it, and a leader that was elected
cleanly must have everything that was committed. A power cut takes a part of what was not synced, and the
broker says so when it returns. The leader of an unclean recovery must have all that is left on the disks of
those who had everything at the end: the members of the last ISR and ELR. Only where somebody asked for an
unclean election, or the settings allow it, less than that may be elected. The controller sees the world only
through commands, some of them late or sent twice.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from tests.unit.controller.machines import Log, Machine
from tidelog.controller.commands import (
    AlterConfigs,
    AlterReassignments,
    AssignReplicas,
    BrokersChanged,
    BrokerShuttingDown,
    ChangeIsr,
    Command,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Done,
    ElectionType,
    ElectLeaders,
    ElectOffline,
    FailDirectories,
    IsrChange,
    LeadersElected,
    LiveBroker,
    PartitionsSpec,
    Reassignment,
    RebalanceLeaders,
    ReplicaLog,
    ReplicaPlacement,
    ReportReplicaLogs,
    Result,
    ShutDownBroker,
    TopicReference,
    TopicSpec,
    UnregisterBroker,
)
from tidelog.controller.machine import Controller
from tidelog.model.identifiers import LOST_DIRECTORY, NO_LEADER, TopicPartition
from tidelog.model.image import ClusterImage, PartitionImage
from tidelog.model.metadata import MetadataRecord, PartitionRecord, record_from_entry
from tidelog.model.settings import BrokerSettings

BROKER_IDS = range(1, 6)
TOPICS = ("a", "b", "c")
UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"


@dataclass
class World:
    seed: int
    image: ClusterImage = field(default_factory=ClusterImage)
    sequence: int = 0
    #: per partition, how much was committed
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    #: what a running broker said of itself when it registered
    said: dict[int, LiveBroker] = field(default_factory=dict)
    #: the leader epochs under which the committed records of a partition were written, by where they began
    epochs: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    targets: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    #: per partition without a leader, how much those had who lost their places though they were waited for
    dropped: dict[TopicPartition, int] = field(default_factory=dict)
    late: list[ChangeIsr] = field(default_factory=list)
    unclean_count: int = 0
    recovered_count: int = 0
    eligible_count: int = 0
    offline_count: int = 0
    healing: bool = False

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.controller = Controller(BrokerSettings.resolve({}))
        self.machines = {broker_id: Machine(broker_id) for broker_id in BROKER_IDS}
        for machine in self.machines.values():
            for _ in range(self.random.randint(1, 3)):
                machine.add_directory()
        for broker_id in self.random.sample(BROKER_IDS, 3):
            self.start(broker_id)
        self.notice()

    # ------------------------------------------------------------ what the brokers do

    def start(self, broker_id: int) -> None:
        machine = self.machines[broker_id]
        machine.incarnation += 1
        machine.running = True
        machine.settle_folders(self.image)
        self.said[broker_id] = machine.live(self.image)

    def notice(self) -> None:
        self.run(self.brokers_changed())
        for machine in self.machines.values():
            if self.registered(machine.broker_id):
                machine.registered()
                if self.random.random() < 0.8:
                    self.report(machine.broker_id)

    def report(self, broker_id: int) -> None:
        """A broker says how long its logs are of partitions that have no leader."""
        logs = []
        for name, partition in self.partitions():
            if partition.leader == NO_LEADER and broker_id in partition.replicas:
                topic_id, machine = self.image.topics[name.topic].topic_id, self.machines[broker_id]
                home = machine.home(self.log(name))
                if home is None or home != partition.directory_of(broker_id):
                    continue
                end = machine.logs[home][self.log(name)]
                last_epoch = self.epoch_at(name, end)
                logs.append(ReplicaLog(topic_id, name.partition, partition.leader_epoch, last_epoch, end))
        if logs:
            self.run(ReportReplicaLogs(broker_id, self.image.brokers[broker_id].epoch, tuple(logs)))

    def epoch_at(self, name: TopicPartition, end: int) -> int:
        return max((epoch for epoch, start in self.epochs.get(name, ()) if start < end), default=-1)

    def min_isr(self, name: TopicPartition) -> int:
        return int(self.image.topics[name.topic].configs.get(MIN_ISR, "1"))

    def brokers_changed(self) -> BrokersChanged:
        running = [machine.broker_id for machine in self.machines.values() if machine.running]
        live = tuple(self.said[broker_id] for broker_id in running)
        return BrokersChanged(live, self.sequence)

    def registered(self, broker_id: int) -> bool:
        """Whether the broker runs in the life that the controller knows."""
        machine, known = self.machines[broker_id], self.image.brokers.get(broker_id)
        return machine.running and known is not None and known.incarnation == str(machine.incarnation)

    def log(self, name: TopicPartition) -> Log:
        return (self.image.topics[name.topic].topic_id, name.partition)

    def level(
        self,
        name: TopicPartition,
        broker_id: int,
        partition: PartitionImage | PartitionRecord,
        *,
        online: bool = False,
    ) -> int:
        """How much the copy has that the cluster counts on; `online`: where the cluster can reach it."""
        believed = partition.directories[partition.replicas.index(broker_id)]
        machine, log = self.machines[broker_id], self.log(name)
        home = machine.believed_home(log, believed)
        if home is None or (online and home not in self.image.brokers[broker_id].directories):
            return 0
        return machine.logs[home][log]

    def in_doubt(self, name: TopicPartition, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the end of a copy is gone in a power cut, and the cluster does not know it yet."""
        machine = self.machines[broker_id]
        home = machine.believed_home(self.log(name), partition.directory_of(broker_id))
        return home in machine.unclean or (home, self.log(name)) in machine.short

    def open_replicas(self) -> None:
        """Every registered broker opens the logs that it may; it tells where it begins one anew."""
        for machine in self.machines.values():
            if not self.registered(machine.broker_id):
                continue
            machine.forget_moves()
            machine.remove_strays(self.image)
            for name, _ in self.partitions():
                partition = self.image.partition(*name)
                if partition is not None and machine.broker_id in partition.replicas:
                    self.open_replica(machine, name, partition)
                elif partition is not None:
                    machine.remove(self.log(name))

    def open_replica(self, machine: Machine, name: TopicPartition, partition: PartitionImage) -> None:
        log, broker_id = self.log(name), machine.broker_id
        believed, home = partition.directory_of(broker_id), machine.home(self.log(name))
        if home == believed or (home is not None and machine.moving_to[home].get(log)):
            return
        counted_on = partition.counts_on(broker_id)
        if believed in machine.directories and home is None:
            # Elected uncleanly, it begins in whatever directory the controller has chosen.
            elected = (
                broker_id == partition.leader and partition.unclean_leader_epoch == partition.leader_epoch
            )
            assert log not in machine.unfinished[believed] or not counted_on or elected
            machine.begin(log, believed)
        elif not counted_on and (self.healing or self.random.random() < 0.7):
            if home is None:
                home = self.random.choice(machine.directories)
                machine.begin(log, home)
            self.assign(machine, log, home)
        else:
            self.offline_count += counted_on

    def assign(self, machine: Machine, log: Log, directory: str) -> Result:
        epoch = self.image.brokers[machine.broker_id].epoch
        [result] = self.run(
            AssignReplicas(machine.broker_id, epoch, (ReplicaPlacement(*log, directory),)), opening=False
        )
        return result

    def has_online(self, broker_id: int, name: TopicPartition) -> bool:
        return self.registered(broker_id) and self.machines[broker_id].home(self.log(name)) is not None

    def move(self) -> None:
        """A broker moves a replica to another of its directories, or goes on with it, or takes it back."""
        machine = self.machines[self.random.choice(BROKER_IDS)]
        logs = [(home, log) for home in machine.directories for log in machine.logs[home]]
        if not self.registered(machine.broker_id) or not logs:
            return
        home, log = self.random.choice(logs)
        topic = self.image.topic_by_id(log[0])
        state = None if topic is None else self.image.partition(topic.name, log[1])
        if state is None or machine.broker_id not in state.replicas:
            return
        believed, target = state.directory_of(machine.broker_id), machine.moving_to[home].get(log)
        if target is None:
            others = [each for each in machine.directories if each != home]
            if others and believed == home:
                target = self.random.choice(others)
                machine.moving_to[home][log] = target
                machine.unfinished[target].add(log)
                if self.random.random() < 0.8:
                    self.assign(machine, log, target)
            return
        if believed == target and target in machine.directories and self.random.random() < 0.7:
            machine.logs[target][log] = machine.synced[target][log] = machine.logs[home].pop(log)
        elif believed != home and self.assign(machine, log, home) != Done():
            return
        del machine.moving_to[home][log]
        machine.unfinished[target].discard(log)

    def fail_directory(self) -> None:
        """A directory of a running broker fails; it tells so, or ends before it does."""
        machine = self.machines[self.random.choice(BROKER_IDS)]
        if len(machine.directories) == 1 or not self.registered(machine.broker_id):
            return
        failed = self.random.choice(machine.directories)
        machine.directories.remove(failed)
        if self.random.random() < 0.2:
            machine.running = False
            return
        lost = []
        for name, state in self.partitions():
            log = self.log(name)
            here = machine.broker_id in state.replicas and log in machine.logs[failed]
            if here and state.directory_of(machine.broker_id) != failed:
                lost.append(ReplicaPlacement(*log, LOST_DIRECTORY))
        epoch = self.image.brokers[machine.broker_id].epoch
        assert self.run(FailDirectories(machine.broker_id, epoch, (failed,), tuple(lost))) == (Done(),)
        assert failed not in self.image.brokers[machine.broker_id].directories
        for directory in machine.directories:
            machine.unfinished[directory] -= set(machine.logs[failed])

    def partitions(self) -> list[tuple[TopicPartition, PartitionImage]]:
        return [
            (TopicPartition(name, index), partition)
            for name, topic in self.image.topics.items()
            for index, partition in enumerate(topic.partitions)
        ]

    def write(self, name: TopicPartition, partition: PartitionImage) -> None:
        """The leader commits a record if every member of the ISR, present or asked for, takes it."""
        topic_id = self.image.topics[name.topic].topic_id
        needed = set(partition.isr)
        for command in self.late:
            for change in command.changes:
                if change.topic_id == topic_id and change.partition == name.partition:
                    needed |= set(change.isr)
        if partition.leader == NO_LEADER or not all(self.has_online(member, name) for member in needed):
            return
        if partition.elr or len(partition.isr) < min(self.min_isr(name), len(partition.replicas)):
            return
        self.committed[name] = self.committed.get(name, 0) + 1
        epochs = self.epochs.setdefault(name, [])
        if not epochs or epochs[-1][0] < partition.leader_epoch:
            epochs.append((partition.leader_epoch, self.committed[name] - 1))
        for member in needed:
            self.fill(name, member, synced=self.random.random() < 0.2)

    def fill(self, name: TopicPartition, broker_id: int, *, synced: bool = False) -> None:
        """A replica has everything that was committed."""
        machine, log = self.machines[broker_id], self.log(name)
        home = machine.home(log)
        assert home is not None
        machine.logs[home][log] = self.committed.get(name, 0)
        if synced:
            machine.synced[home][log] = machine.logs[home][log]

    def isr_change(self, name: TopicPartition, partition: PartitionImage, isr: tuple[int, ...]) -> ChangeIsr:
        brokers = self.image.brokers
        change = IsrChange(
            self.image.topics[name.topic].topic_id,
            name.partition,
            partition.leader_epoch,
            partition.partition_epoch,
            isr,
            tuple(brokers[member].epoch for member in isr),
        )
        return ChangeIsr(partition.leader, brokers[partition.leader].epoch, (change,))

    def ask_for_isr(self, name: TopicPartition, partition: PartitionImage) -> None:
        """The leader asks for another ISR; whoever joins has caught up before."""
        if partition.leader == NO_LEADER or not self.registered(partition.leader):
            return
        isr = [partition.leader]
        for replica in partition.replicas:
            if replica == partition.leader or self.random.random() < 0.3:
                continue
            if replica in partition.isr and replica in self.image.brokers:
                isr.append(replica)
            elif self.has_online(replica, name):
                isr.append(replica)
                self.fill(name, replica)
        self.random.shuffle(isr)
        command = self.isr_change(name, partition, tuple(isr))
        self.late.append(command)
        if self.random.random() < 0.6:
            self.deliver(command)

    def deliver(self, command: ChangeIsr) -> None:
        if self.random.random() < 0.9:
            self.late.remove(command)
        self.run(command)

    # ------------------------------------------------------------ what the controller decides

    def run(self, command: Command, *, opening: bool = True) -> tuple[Result, ...]:
        before = self.image
        decision = self.controller.handle(command, before, self.random)
        assert len(decision.results) == command.item_count
        self.sequence += bool(decision.records)
        for record in decision.records:
            check_stored(record)
        if decision.records:
            self.check_part(before.apply(decision.records[: self.random.randrange(len(decision.records))]))
            self.image = before.apply(decision.records)
        self.image.check_invariants()
        for record in decision.records:
            if isinstance(record, PartitionRecord):
                self.check_step(command, before.partition(record.topic, record.index), record)
        for name, partition in self.partitions():
            self.check_state(name, partition)
        if isinstance(command, BrokersChanged):
            self.check_new_lives(before)
        again = self.controller.handle(command, self.image, self.random)
        assert again.records == (), f"decided twice: {command}"
        self.keep_book(command, decision.results)
        if opening and decision.records:
            self.open_replicas()
        return decision.results

    def check_state(self, name: TopicPartition, partition: PartitionImage) -> None:
        eligible = partition.isr or partition.elr
        needed = min(self.min_isr(name), len(partition.replicas))
        assert len(partition.isr) < needed or not partition.elr, (
            f"{name}: an ELR beside an ISR that is large enough: {partition}"
        )
        brokers = self.image.brokers
        if partition.leader != NO_LEADER:
            assert brokers[partition.leader].alive
            unfit = [member for member in partition.isr if not brokers[member].active]
            assert not unfit or partition.isr == (partition.leader,), f"{name}: {unfit} in the ISR"
        else:
            able = [
                member
                for member in eligible
                if member in brokers
                and brokers[member].active
                and brokers[member].has_online(partition.directory_of(member))
            ]
            assert not able, f"{name} has no leader though {able} could lead"
        for member in (*partition.isr, *partition.elr):
            if self.in_doubt(name, member, partition) or len(partition.replicas) == 1:
                continue  # nobody knows, or nobody can do anything about it
            if partition.directory_of(member) != LOST_DIRECTORY:
                has = self.level(name, member, partition)
                assert has >= self.committed.get(name, 0), f"{name}: broker {member} is not in sync"
        if partition.reassigning and partition.leader != NO_LEADER:
            in_sync = [member for member in partition.isr if brokers[member].active]
            assert not set(partition.target_replicas) <= set(in_sync), f"{name} has reached its target"

    def check_part(self, part: ClusterImage) -> None:
        """A decision that is seen in part shows no new life that leads as its last one did."""
        part.check_invariants()
        for name, earlier in self.partitions():
            partition = part.partition(*name)
            if partition is None or partition.leader not in part.brokers:
                continue
            known = self.image.brokers.get(partition.leader)
            if known is None or part.brokers[partition.leader].incarnation != known.incarnation:
                assert partition.leader_epoch > earlier.leader_epoch

    def check_new_lives(self, before: ClusterImage) -> None:
        """A new life is noticed: it leads under a new epoch, and it is in no ISR that has others."""
        fresh = {
            broker_id
            for broker_id, broker in self.image.brokers.items()
            if broker_id in before.brokers and broker.epoch != before.brokers[broker_id].epoch
        }
        for broker_id in fresh:
            assert self.image.brokers[broker_id].epoch > before.brokers[broker_id].epoch
        steady = {broker.id for broker in self.image.brokers.values() if broker.active} - fresh
        for name, partition in self.partitions():
            earlier = before.partition(*name)
            assert earlier is not None
            if partition.leader in fresh:
                assert partition.leader_epoch > earlier.leader_epoch
            if any(member in steady and member in partition.isr for member in earlier.isr):
                assert fresh.isdisjoint(partition.isr), f"{name}: a new life stayed in the ISR"

    def check_step(self, command: Command, before: PartitionImage | None, after: PartitionRecord) -> None:
        name = TopicPartition(after.topic, after.index)
        if before is None:
            assert (after.leader_epoch, after.partition_epoch) == (0, 0)
            return
        assert after.partition_epoch == before.partition_epoch + 1
        assert after.leader_epoch in (before.leader_epoch, before.leader_epoch + 1)
        if after.leader != before.leader:
            assert after.leader_epoch > before.leader_epoch
        if isinstance(command, ChangeIsr) and not before.reassigning and after.leader == before.leader:
            assert after.leader_epoch == before.leader_epoch
        if after.leader != NO_LEADER and not set(after.replicas).issuperset(before.replicas):
            assert after.leader_epoch > before.leader_epoch
        by_leader = isinstance(command, ChangeIsr | AlterReassignments)
        if after.leader != NO_LEADER and not by_leader and not set(after.isr).issuperset(before.isr):
            assert after.leader_epoch > before.leader_epoch
        ended = before.reassigning and not (after.adding or after.removing)
        if ended and not isinstance(command, AlterReassignments):
            assert set(after.isr) == set(after.replicas)
        allowed = self.image.topics[after.topic].configs.get(UNCLEAN) == "true"
        if before.leader == NO_LEADER and not allowed:
            self.note_dropped(name, before, after)
        if after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch:
            return
        self.check_elected(command, name, before, after)
        self.dropped.pop(name, None)

    def note_dropped(self, name: TopicPartition, before: PartitionImage, after: PartitionRecord) -> None:
        """A copy still counts that the controller gave up while it looked for a leader."""
        for holder in (*before.isr, *before.elr, *before.last_known_elr):
            if holder not in after.replicas and holder in self.image.brokers:
                had = self.level(name, holder, before, online=True)
                self.dropped[name] = max(had, self.dropped.get(name, 0))

    def check_elected(
        self, command: Command, name: TopicPartition, before: PartitionImage, after: PartitionRecord
    ) -> None:
        """A new leader has what it must have; then what it does not have is given up."""
        machine, log = self.machines[after.leader], self.log(name)
        home = machine.believed_home(log, after.directories[after.replicas.index(after.leader)])
        in_doubt = home in machine.unclean or (home, log) in machine.short
        if in_doubt and not self.registered(after.leader):
            return  # its end is not noticed yet: nobody will hear of its leadership
        has = self.level(name, after.leader, after, online=True)
        unclean = after.unclean_leader_epoch == after.leader_epoch
        alone = len(after.replicas) == 1
        assert unclean or alone or has >= self.committed.get(name, 0), (
            f"{name}: broker {after.leader} was elected cleanly with {has} of {self.committed[name]}"
        )
        if not unclean:
            self.eligible_count += after.leader not in before.isr
        else:
            assert after.isr == (after.leader,)
            asked = isinstance(command, ElectLeaders) and command.type is ElectionType.UNCLEAN
            allowed = self.image.topics[after.topic].configs.get(UNCLEAN) == "true"
            holders = (*before.isr, *before.elr, *before.last_known_elr)
            known = [holder for holder in holders if holder in self.image.brokers]
            left = max((self.level(name, holder, before, online=True) for holder in known), default=0)
            left = max(left, self.dropped.get(name, 0))
            if asked or allowed:
                self.unclean_count += has < self.committed.get(name, 0)
            else:
                assert has >= left, f"{name}: broker {after.leader} leads with {has}, {left} are left"
                self.recovered_count += 1
        if has < self.committed.get(name, 0):
            self.committed[name] = has
            epochs = [entry for entry in self.epochs.get(name, ()) if entry[1] < has]
            self.epochs[name] = epochs

    def keep_book(self, command: Command, results: tuple[Result, ...]) -> None:
        if isinstance(command, AlterReassignments):
            for item, result in zip(command.items, results, strict=True):
                name = TopicPartition(item.topic, item.partition)
                if isinstance(result, Done):
                    partition = self.image.partition(*name)
                    assert partition is not None
                    self.targets[name] = item.replicas or partition.replicas
                    assert partition.target_replicas == self.targets[name]
        elif isinstance(command, ShutDownBroker) and isinstance(results[0], BrokerShuttingDown):
            led = sum(partition.leader == command.broker_id for _, partition in self.partitions())
            assert results[0].led_partition_count == led
        elif isinstance(command, DeleteTopics):
            gone = [name for name in self.targets if name.topic not in self.image.topics]
            for name in gone:
                del self.targets[name]
            for name in [name for name in self.dropped if name.topic not in self.image.topics]:
                del self.dropped[name]
            self.committed = {
                name: level for name, level in self.committed.items() if name.topic in self.image.topics
            }

    # ------------------------------------------------------------ one random step

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.05:
            self.step_of_power()
        elif draw < 0.3:
            self.step_of_machines()
        elif draw < 0.7 and self.image.topics:
            name, partition = self.random.choice(self.partitions())
            self.write(name, partition)
            self.ask_for_isr(name, partition)
        elif draw < 0.75 and self.late:
            self.deliver(self.random.choice(self.late))
        elif draw < 0.82:
            self.move()
        elif draw < 0.85:
            self.fail_directory()
        else:
            self.run(self.administration())

    def step_of_machines(self) -> None:
        machine = self.machines[self.random.choice(BROKER_IDS)]
        if machine.running:
            machine.running = False
            if self.random.random() < 0.4:
                self.run(self.shut_down(machine.broker_id))
        if self.random.random() < 0.15:
            machine.lose_directories(self.random)
        if self.random.random() < 0.15:
            machine.lose_records(self.random)
        if self.random.random() < 0.6:
            # Sometimes before anybody noticed the end.
            self.start(machine.broker_id)
        if self.random.random() < 0.7:
            self.notice()

    def step_of_power(self) -> None:
        """Several machines lose their power, and come back in any order."""
        if self.random.random() < 0.3:
            self.move_replicas()
        cut = self.random.sample(BROKER_IDS, self.random.choice((1, 2, 5)))
        for broker_id in cut:
            self.machines[broker_id].cut_power(self.random)
        if self.random.random() < 0.5:
            self.notice()
        for broker_id in cut:
            if self.random.random() < 0.8:
                self.start(broker_id)
                if self.random.random() < 0.6:
                    self.notice()
                    self.redirect_moves()

    def move_replicas(self) -> None:
        """Partitions are on their way to other brokers, some of which have caught up."""
        for name, _ in self.partitions():
            self.run(AlterReassignments((Reassignment(*name, self.target()),)))
            for act in (self.ask_for_isr, self.write):
                partition = self.image.partition(*name)
                assert partition is not None
                act(name, partition)

    def redirect_moves(self) -> None:
        """Somebody takes moves back, or changes their targets, of partitions that wait for a leader."""
        for name, partition in self.partitions():
            waits = partition.leader == NO_LEADER and partition.adding
            if waits and self.random.random() < 0.5:
                self.run(AlterReassignments((Reassignment(*name, self.target()),)))

    def target(self) -> tuple[int, ...] | None:
        if self.random.random() < 0.4:
            return None
        return tuple(self.random.sample(BROKER_IDS, self.random.randint(1, 3)))

    def shut_down(self, broker_id: int) -> ShutDownBroker:
        known = self.image.brokers.get(broker_id)
        return ShutDownBroker(broker_id, known.epoch if known is not None else 0)

    def administration(self) -> Command:
        random = self.random
        name = random.choice(TOPICS)
        partitions = self.partitions()
        choice = random.randrange(14)
        if choice == 0 or not partitions:
            factor = random.randint(1, 3)
            configs = {MIN_ISR: str(random.randint(1, 3))}
            return CreateTopics((TopicSpec(name, random.randint(1, 3), factor, configs=configs),))
        one, _ = random.choice(partitions)
        if choice == 1:
            return CreatePartitions((PartitionsSpec(name, random.randint(1, 4)),))
        if choice == 2 and random.random() < 0.3:
            return DeleteTopics((TopicReference(name),))
        if choice == 3:
            return ElectLeaders(ElectionType.UNCLEAN, (one,))
        if choice == 4:
            return ElectLeaders(ElectionType.PREFERRED, None)
        if choice == 5:
            return RebalanceLeaders()
        if choice == 6:
            return UnregisterBroker(random.choice(BROKER_IDS))
        if choice == 7:
            value = random.choice(("true", "false", "false"))
            change = ConfigChange(UNCLEAN, ConfigOperation.SET, value)
            return AlterConfigs((ConfigChanges(ConfigResourceType.TOPIC, one.topic, (change,)),))
        if choice == 12:
            change = ConfigChange(MIN_ISR, ConfigOperation.SET, str(random.randint(1, 3)))
            return AlterConfigs((ConfigChanges(ConfigResourceType.TOPIC, one.topic, (change,)),))
        if choice == 13:
            return ElectOffline()
        if choice == 8:
            return AlterReassignments((Reassignment(*one, None),))
        if choice == 9:
            assignments = tuple(random.sample(BROKER_IDS, 2) for _ in range(2))
            pairs = tuple((index, tuple(replicas)) for index, replicas in enumerate(assignments))
            return CreateTopics((TopicSpec(name, assignments=pairs),))
        target = tuple(random.sample(BROKER_IDS, random.randint(1, 3)))
        return AlterReassignments((Reassignment(*one, target),))

    # ------------------------------------------------------------ when the faults stop

    def heal(self) -> None:
        """Every broker runs; what cannot be led cleanly is led anyhow; then all catch up."""
        self.healing = True
        for machine in self.machines.values():
            known = self.image.brokers.get(machine.broker_id)
            if not self.registered(machine.broker_id) or (known is not None and known.shutting_down):
                self.start(machine.broker_id)
        self.late.clear()
        self.notice()
        for machine in self.machines.values():
            for home in machine.directories:
                for log in list(machine.moving_to[home]):
                    self.assign(machine, log, home)
                    del machine.moving_to[home][log]
        offline = tuple(name for name, partition in self.partitions() if partition.leader == NO_LEADER)
        [elected] = self.run(ElectLeaders(ElectionType.UNCLEAN, offline))
        assert isinstance(elected, LeadersElected) and all(refused is None for _, refused in elected.outcomes)
        for _ in range(2):
            self.open_replicas()
            for name, _ in self.partitions():
                partition = self.image.partition(*name)
                assert partition is not None
                if set(partition.isr) != set(partition.replicas) or partition.reassigning:
                    for replica in partition.replicas:
                        self.fill(name, replica)
                    self.run(self.isr_change(name, partition, partition.replicas))
        self.run(ElectLeaders(ElectionType.PREFERRED))
        for name, partition in self.partitions():
            assert not partition.reassigning
            assert set(partition.isr) == set(partition.replicas)
            assert partition.leader == partition.replicas[0]
            assert partition.replicas == self.targets.get(name, partition.replicas)


def check_stored(record: MetadataRecord) -> None:
    for key, value in record.writes():
        if value is not None:
            assert record_from_entry(key, value) == record


@pytest.mark.parametrize("chunk", range(20))
def test_random_histories(chunk: int) -> None:
    unclean_count = recovered_count = eligible_count = offline_count = 0
    for seed in range(chunk * 70, chunk * 70 + 70):
        world = World(seed)
        try:
            for _ in range(40):
                world.step()
            world.heal()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        unclean_count += world.unclean_count
        recovered_count += world.recovered_count
        eligible_count += world.eligible_count
        offline_count += world.offline_count
    assert unclean_count > 0, "the histories are too tame to lose anything anywhere"
    assert recovered_count > 0, "the longest log was never looked for"
    assert eligible_count > 0, "nobody was elected from an ELR"
    assert offline_count > 0, "no replica that is counted on ever lost its directory"

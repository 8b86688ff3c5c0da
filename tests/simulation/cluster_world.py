"""A world in one thread and from one seed: a whole cluster of real brokers, its clients, and misfortune.

The brokers are the real ones (controller, metadata, replication, storage); network, clocks, disks and the
coordination store are simulated. A story has some seconds of trouble and then peace. Each seed has a mood:
the kinds of trouble it knows. Processes die and start again; power fails and takes what was not synced;
disks are exchanged for empty ones; sessions end; the store is out of reach, or swallows the answer to a
commit; links are cut in one direction or both, slow, or reset; loops hang, processes stop, disks are slow,
wall clocks jump; replicas are moved, leaders elected, topics deleted and made again; brokers leave politely.
What may happen to single log directories is told in `cluster_directories`.

After every event `cluster_checks` looks. When the trouble ends everything must come to rest in time: every
replica in sync with the same log, preferred leaders, all producers answered, nobody waiting.

What acks=all promises is in the logs of the replicas in sync, not on their disks. So of a broker in an ISR
power may take data only while others in that ISR have it and stay; what is lost is decided when the machine
starts again, for nobody can see a disk without power. The same goes for disks that come back empty.

A blackout takes the power from all machines at once. Of every partition one disk of those that had everything
(a member of the ISR or ELR) has kept it, by chance and unknown to anybody; all others may have lost what was
not synced. Nothing that was committed may be lost then, in whatever order they come back.

    python -m tests.simulation.cluster_world SEED     tells the story of a seed
"""

import logging
import sys
from collections.abc import Callable, Iterator

from tests.simulation.cluster_checks import AuditedStore, Broken, Checker, must
from tests.simulation.cluster_clients import Producer, Reader
from tests.simulation.cluster_directories import Directories
from tests.simulation.cluster_machines import Cluster, Machine
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import SimulatedStore
from tidelog.broker.metadata.election import live_key
from tidelog.controller.commands import (
    AllocateProducerIds,
    AlterReassignments,
    Command,
    CreateTopics,
    DeleteTopics,
    ElectionType,
    ElectLeaders,
    ProducerIdBlock,
    Reassignment,
    Result,
    TopicReference,
    TopicSpec,
)
from tidelog.coordination.store import StoreError
from tidelog.model.identifiers import TopicPartition

TROUBLE_MS = 3_000
PEACE_MS = 25_000
SESSION_MS = 700
STORY_LINES = 60

SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "500",
    "replica.fetch.wait.max.ms": "250",
    "replica.socket.timeout.ms": "400",
    "replica.fetch.backoff.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "broker.session.timeout.ms": str(SESSION_MS),
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
    "log.flush.offset.checkpoint.interval.ms": "700",
    "log.segment.bytes": "1500",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.enable": "false",
    "offsets.topic.replication.factor": "1",
}


class ClusterWorld(Cluster):
    """One story."""

    audit: AuditedStore
    checker: Checker

    def __init__(self, seed: int, *, tell: bool = False) -> None:
        logging.disable(logging.CRITICAL)
        self.seed = seed
        self.story: list[str] = []
        self._tell = tell
        #: events before the checker is there, while machines are made, are not checked
        self._checked = False
        self._peace = False
        self._calm: int | None = None
        #: until when commands may be under way that take leaders or replicas from brokers
        self._commands_until_ms = 0
        self._disturbed_ms = 0
        self._id_blocks: list[range] = []
        #: machines that lost their power in a blackout and that the cluster does not know again yet
        self._blacked_out: set[int] = set()
        self.clients: list[Producer | Reader] = []
        self.dead: dict[int, str] = {}
        self.directories = Directories(self)
        super().__init__(seed, (1, 2, 3) if seed % 4 else (1, 2, 3, 4), SETTINGS)
        self.checker = Checker(self.audit, self.machines)
        self._checked = True
        self._mood = [kind for kind in self._troubles() if self.random.random() < 0.45]

    def furnish(self, machine: Machine) -> None:
        self.directories.furnish(machine)

    def make_store(self) -> AuditedStore:
        self.audit = AuditedStore(self.random)
        return self.audit

    def happened(self, machine: Machine | None) -> None:
        if self._checked:
            self.checker.check(machine)
            if machine is not None and machine.registered and machine.registered[0] is not None:
                self._give_up(machine, str(machine.registered[0]))
            elif machine is not None and machine.fatal and not machine.ended:
                self._give_up(machine, machine.fatal[0])

    def _give_up(self, machine: Machine, why: str) -> None:
        """The cluster does not take a broker, or it cannot go on: it ends, and somebody starts it again."""
        self.say(f"broker {machine.node_id} gives up: {why}")
        machine.end()
        self.dead[machine.node_id] = "killed"
        self._expire_after(machine.store, 0, lambda: True)
        self._later(lambda: self._restart(machine.node_id))

    def say(self, what: str) -> None:
        """Go on with the story."""
        line = f"{self.now_ms % 1_000_000:7d} {what}"
        self.story.append(line)
        if self._tell:
            print(line)

    # -- the story

    def simulate(self) -> str:
        """Live through the story; returns what happened, in a few numbers. Raises Broken."""
        with self.checker.watching():
            self._live()
        return (
            f"{self.events.count} events, {self.checker.acknowledged_count} acknowledged, "
            f"{len(self.audit.commits)} commits, {[h.end for h in self.checker.histories.values()]}"
        )

    def _live(self) -> None:
        machines = self.machines.values()
        must(self.run_until(lambda: all(m.registered for m in machines), 5_000), "no start")
        self._make_topic("t", 2, 3)
        if self.random.random() < 0.5:
            self._make_topic("u", 1, 2)
        must(self.run_until(lambda: "t" in self.audit.topics, 5_000), "no topic")
        self._next_trouble()
        self.run_for(TROUBLE_MS)
        self._make_peace()
        must(self.run_until(self._at_rest, PEACE_MS), f"no rest after {PEACE_MS} ms: {self._unrest()}")
        self._check_end()

    def _make_topic(self, name: str, partitions: int, replicas: int) -> None:
        spec = TopicSpec(name, partitions, replicas)
        self._submit(CreateTopics((spec,)), lambda result: self._topic_made(name, partitions))

    def _topic_made(self, name: str, partitions: int) -> None:
        topic_id = self.audit.topics.get(name)
        if topic_id is None or any(client.topic_id == topic_id for client in self.clients):
            return
        for index in range(partitions):
            for acks in (-1, -1, 1) if index == 0 else (-1,):
                number = len(self.clients) + 1
                self.clients.append(Producer(self, number, name, topic_id, index, acks))
            number = len(self.clients) + 1
            self.clients.append(Reader(self, number, name, topic_id, index))
        if self._peace:
            for client in self.clients:
                client.stopped = isinstance(client, Producer)

    def _submit(self, command: Command, then: Callable[[Result], None] = lambda result: None) -> None:
        machines = [machine for machine in self.running if machine.open]
        if machines:
            asked = self.random.choice(machines)
            asked.broker.metadata.submit(command, lambda results: then(results[0]), timeout_ms=3_000)
            self._commands_until_ms = self.now_ms + 3_000

    # -- trouble

    def _troubles(self) -> dict[str, Callable[[], None]]:
        return {
            "kill": self._kill,
            "kill leader": self._kill_leader,
            "kill controller": self._kill_controller,
            "power": self._power,
            "wipe": self._wipe,
            "blackout": self._blackout,
            "session": self._session,
            "store cut": self._store_cut,
            "store outage": self._store_outage,
            "commit unknown": self._commit_unknown,
            "freeze": self._freeze,
            "hang": self._hang,
            "slow disk": self._slow_disk,
            "cut": self._cut,
            "isolate": self._isolate,
            "slow link": self._slow_link,
            "reset": self._reset,
            "clock": self._clock,
            "move": self._move,
            "elect": self._elect,
            "topics": self._topics,
            "producer ids": self._producer_ids,
            "leave": self._leave,
            "directory away": self.directories.take_away,
            "directory lost": self.directories.lose,
            "directories swapped": self.directories.swap,
            "directory fails": self.directories.fail,
            "log moves": self.directories.move,
        }

    def _next_trouble(self) -> None:
        if self._peace:
            return
        if self._mood and not self._is_calm():
            kind = self.random.choice(self._mood)
            if kind not in ("power", "wipe", "blackout"):
                self._disturbed_ms = self.now_ms
            self._troubles()[kind]()
        self.events.at(self.now_ms + self.random.choice((20, 100, 200, 400)), None, self._next_trouble)

    def _later(self, call: Callable[[], None]) -> None:
        """Take a trouble back after a while; peace takes all of it back."""
        self.events.at(
            self.now_ms + self.random.choice((50, 200, 500, 900, 1500)),
            None,
            lambda: None if self._peace else call(),
        )

    def _taken_back(self, call: Callable[[], None]) -> Callable[[], None]:
        def take_back() -> None:
            self._disturbed_ms = self.now_ms
            call()

        return take_back

    def _is_calm(self) -> bool:
        """Whether a broker is on its way back that lost what an ISR believes it has."""
        if self._calm is None:
            return False
        node_id = self._calm
        registered = self.audit.brokers.get(node_id)
        machine = self.machines[node_id]
        me = machine.broker.metadata._me if machine.open else None
        if registered is not None and me is not None and registered.incarnation == me.incarnation:
            self._calm = None
        return self._calm is not None

    def _pick(self) -> Machine | None:
        running = [machine for machine in self.running if machine.open]
        return self.random.choice(running) if running else None

    def _kill(self, machine: Machine | None = None, how: str = "killed") -> None:
        machine = machine or self._pick()
        if machine is None:
            return
        self.say(f"broker {machine.node_id} is {how}")
        machine.end(quietly=how != "killed")
        self.dead[machine.node_id] = how
        store = machine.store
        at_once = how == "killed" and self.random.random() < 0.5
        self._expire_after(store, 0 if at_once else SESSION_MS, lambda: True)
        self._later(lambda: self._restart(machine.node_id))

    def _kill_leader(self) -> None:
        leaders = [m for m in self.running if m.open and m.broker.replicas.led]
        if leaders:
            self._kill(self.random.choice(leaders))

    def _kill_controller(self) -> None:
        found = [m for m in self.running if m.open and m.broker.metadata.is_controller]
        if found:
            self._kill(found[0])

    def _power(self) -> None:
        self._kill(how="without power")

    def _blackout(self) -> None:
        """All machines lose their power, as soon as it is certain who has what."""
        if self._peace or self._in_blackout():
            return
        if self._is_calm() or not all(map(self._undisturbed, self.running)):
            self.events.at(self.now_ms + 50, None, self._blackout)
            return
        keepers = self._keepers()
        self.say(f"blackout; {sorted(keepers)} will have kept everything")
        for node_id, machine in self.machines.items():
            if machine.ended:
                self.dead[node_id] = "killed"
                continue
            self._blacked_out.add(node_id)
            self._kill(machine, how="in the dark, with luck" if node_id in keepers else "in the dark")

    def _keepers(self) -> set[int]:
        """Machines of which every partition has one that has everything, as few as possible.

        One whose end is not noticed yet does not count: it may come back while the others still seem to be
        there, and leaves the ISR to them.
        """
        kept: set[int] = set()
        for record in self.audit.partitions.values():
            holders = (*record.isr, *record.elr)
            counted = [holder for holder in holders if not self.machines[holder].ended]
            if not counted:
                kept.update(holders or record.last_known_elr)
            elif kept.isdisjoint(counted):
                kept.add(self.random.choice(counted))
        return kept

    def _in_blackout(self) -> bool:
        """Whether machines of a blackout are not known to the cluster again, or partitions wait for them."""
        for node_id in list(self._blacked_out):
            registered = self.audit.brokers.get(node_id)
            machine = self.machines[node_id]
            me = machine.broker.metadata._me if machine.open else None
            if registered is not None and me is not None and registered.incarnation == me.incarnation:
                self._blacked_out.discard(node_id)
        return bool(self._blacked_out) or any(
            not (record.isr or record.elr) for record in self.audit.partitions.values()
        )

    def _wipe(self) -> None:
        self._kill(how="without its disk")

    def _restart(self, node_id: int) -> None:
        old = self.machines[node_id]
        if not old.ended:
            return
        old.refuse_old_wires()
        how = self.dead[node_id]
        dark = how.startswith("in the dark")
        if how != "killed" and not dark and not self._may_lose(node_id):
            how = "killed"
        if how == "without its disk":
            old.disk.kill()
            disk = SimulatedDisk(self.random.getrandbits(32))
        elif dark:
            disk = old.disk.crash(everything_was_written=how == "in the dark, with luck")
        else:
            disk = old.disk.crash() if how == "without power" else old.disk.kill()
        machine = Machine(self, node_id, disk, old.clock, life=old.life + 1)
        machine.slow = old.slow
        machine.store_cut = old.store_cut
        wiped = how == "without its disk"
        if self.directories.before_start(machine, wiped=wiped, may_lose=not dark and self._may_lose(node_id)):
            how = "without a directory"
        self.machines[node_id] = machine
        self.checker.forget(node_id)
        try:
            machine.start()
        except StoreError as fault:
            self.say(f"broker {node_id} cannot start: {fault}")
            machine.end()
            self.dead[node_id] = "killed"
            self._later(lambda: self._restart(node_id))
            return
        self.say(f"broker {node_id} starts again{'' if how == 'killed' else ' ' + how}")
        del self.dead[node_id]
        counted = any(node_id in (*record.isr, *record.elr) for record in self.audit.partitions.values())
        if how != "killed" and counted and not dark:
            self._calm = node_id

    def _may_lose(self, node_id: int) -> bool:
        """Whether every partition that counts on this broker has others in sync, who run undisturbed and will
        for a while."""
        if self._in_blackout():
            return False
        counting = [
            record
            for record in self.audit.partitions.values()
            if node_id in (*record.isr, *record.elr, *record.last_known_elr)
        ]
        if not counting and not self.audit.brokers[node_id].alive:
            # Nobody relies on it, and no change that is under way can make it part of an ISR.
            return True
        if self._is_calm() or self.now_ms < max(self._commands_until_ms, self._disturbed_ms + SESSION_MS):
            return False
        for record in counting:
            others = [self.machines[other] for other in record.isr if other != node_id]
            if not others or not all(self._undisturbed(other) for other in others):
                return False
        return True

    def _undisturbed(self, machine: Machine) -> bool:
        registered = self.audit.brokers.get(machine.node_id)
        return (
            machine.running
            and machine.open
            and not machine.store_cut
            and machine.store is not None
            and not machine.store.expired
            and registered is not None
            and registered.alive
            and machine.broker.metadata._me is not None
            and machine.broker.metadata._me.incarnation == registered.incarnation
        )

    def _expire_after(self, store: SimulatedStore | None, delay_ms: int, still: Callable[[], bool]) -> None:
        """The store gives a session up that it did not hear of for so long."""
        if store is not None:
            self.events.at(self.now_ms + delay_ms, None, lambda: store.expire() if still() else None)

    def _session(self) -> None:
        machine = self._pick()
        if machine is not None and machine.store is not None:
            self.say(f"the session of broker {machine.node_id} ends")
            machine.store.expire()

    def _cut_store(self, machine: Machine) -> None:
        machine.store_cut = True
        if machine.store is not None:
            machine.store.partition()

    def _heal_store(self, machine: Machine) -> None:
        machine.store_cut = False
        if machine.store is not None:
            machine.store.heal()

    def _store_cut(self) -> None:
        machine = self._pick()
        if machine is None or machine.store_cut:
            return
        self.say(f"broker {machine.node_id} does not reach the store")
        self._cut_store(machine)
        began_ms = self.now_ms
        machine_store = machine.store
        cut = [True]
        self._expire_after(machine_store, SESSION_MS, lambda: cut[0])

        def heal() -> None:
            cut[0] = False
            self.say(f"broker {machine.node_id} reaches the store again, {self.now_ms - began_ms} ms later")
            self._heal_store(self.machines[machine.node_id])

        self._later(self._taken_back(heal))

    def _store_outage(self) -> None:
        if any(machine.store_cut for machine in self.machines.values()):
            return
        self.say("the store is out of reach")
        for machine in self.machines.values():
            self._cut_store(machine)

        def heal() -> None:
            self.say("the store is back")
            for machine in self.machines.values():
                self._heal_store(machine)

        self._later(self._taken_back(heal))

    def _commit_unknown(self) -> None:
        machine = next((m for m in self.running if m.broker.metadata.is_controller), None) or self._pick()
        if machine is not None and machine.store is not None:
            self.say(f"broker {machine.node_id} will not hear what became of its next commits")
            machine.store.lose_answer_next(self.random.choice((1, 1, 2)))

    def _stop_running(self, machine: Machine, *, frozen: bool) -> None:
        if frozen:
            machine.frozen = True
            self._expire_after(machine.store, SESSION_MS, lambda: machine.frozen)
        else:
            machine.hung = True
            self._must_lapse(machine)
        machine.stopped_ms = self.now_ms

        def go_on() -> None:
            if not machine.ended:
                self.say(f"broker {machine.node_id} goes on")
                self._go_on(machine)

        self._later(self._taken_back(go_on))

    def _go_on(self, machine: Machine) -> None:
        if self.now_ms - machine.stopped_ms > SESSION_MS:
            self.checker.stood_still(machine)
        machine.thaw()

    def _must_lapse(self, machine: Machine) -> None:
        """A broker whose loop hangs must be without a session when its timeout has passed."""
        began_ms = self.now_ms

        def look() -> None:
            if machine.hung and not machine.ended and machine.stopped_ms == began_ms:
                # A session that was opened and that the loop has not heard of yet says nothing to anybody.
                alive = {entry.key for entry in self.store.entries()}
                kept = live_key(machine.node_id) in alive and not machine.store_cut
                must(not kept, f"the loop of broker {machine.node_id} hangs, and its session is kept")

        self.events.at(self.now_ms + SESSION_MS, None, look)

    def _freeze(self) -> None:
        machine = self._pick()
        if machine is not None:
            self.say(f"broker {machine.node_id} stands still")
            self._stop_running(machine, frozen=True)

    def _hang(self) -> None:
        machine = self._pick()
        if machine is not None:
            self.say(f"the loop of broker {machine.node_id} hangs")
            self._stop_running(machine, frozen=False)

    def _slow_disk(self) -> None:
        machine = self._pick()
        if machine is not None:
            self.say(f"the disk of broker {machine.node_id} is slow")
            machine.slow = True
            node_id = machine.node_id
            self._later(lambda: setattr(self.machines[node_id], "slow", False))

    def _pairs(self, *, both: bool, everybody: bool) -> set[tuple[int, int]]:
        ids = list(self.machines)
        one = self.random.choice(ids)
        others = [other for other in ids if other != one]
        if not everybody:
            others = [self.random.choice(others)]
        if everybody and self.random.random() < 0.5:
            others += [client.client_id for client in self.clients]
        pairs = {(one, other) for other in others}
        backwards = {(other, one) for other in others}
        if both:
            return pairs | backwards
        return pairs if self.random.random() < 0.5 else backwards

    def _cut_pairs(self, pairs: set[tuple[int, int]]) -> None:
        self.say(f"cut: {' '.join(f'{a}>{b}' for a, b in sorted(pairs))}")
        self.network.cuts |= pairs

        def heal() -> None:
            self.say("a cut is healed")
            self.network.heal(pairs)

        self._later(self._taken_back(heal))

    def _cut(self) -> None:
        self._cut_pairs(self._pairs(both=self.random.random() < 0.5, everybody=False))

    def _isolate(self) -> None:
        self._cut_pairs(self._pairs(both=self.random.random() < 0.6, everybody=True))

    def _slow_link(self) -> None:
        pairs = self._pairs(both=self.random.random() < 0.5, everybody=False)
        self.say(f"slow: {' '.join(f'{a}>{b}' for a, b in sorted(pairs))}")
        self.network.slow |= pairs
        self._later(lambda: self.network.slow.difference_update(pairs))

    def _reset(self) -> None:
        ids = list(self.machines)
        one, other = self.random.sample(ids, 2)
        self.say(f"connections between {one} and {other} are reset")
        self.network.reset(one, other)

    def _clock(self) -> None:
        machine = self._pick()
        if machine is not None:
            machine.clock.wrong_by_ms += self.random.choice((-20_000, -900, 900, 20_000))
            self.say(f"the wall clock of broker {machine.node_id} jumps")

    # -- commands

    def _move(self) -> None:
        key = self.random.choice(list(self.audit.partitions) or [("t", 0)])
        if self.random.random() < 0.2:
            self.say(f"a move of {key[0]}-{key[1]} is taken back")
            self._submit(AlterReassignments((Reassignment(*key, None),)))
            return
        ids = list(self.machines)
        replicas = tuple(self.random.sample(ids, self.random.choice((2, 3, 3))))
        self.say(f"{key[0]}-{key[1]} shall move to {replicas}")
        self._submit(AlterReassignments((Reassignment(*key, replicas),)))

    def _elect(self) -> None:
        self.say("preferred leaders shall be elected")
        self._submit(ElectLeaders(ElectionType.PREFERRED))

    def _topics(self) -> None:
        made = [name for name in self.audit.topics if name.startswith("v")]
        if made:
            self.say(f"topic {made[0]} shall go")
            self._submit(DeleteTopics((TopicReference(made[0]),)))
        else:
            name = "v"
            self.say(f"topic {name} shall be made")
            self._make_topic(name, 1, 3)

    def _producer_ids(self) -> None:
        self.say("somebody needs producer ids")
        self._submit(AllocateProducerIds(self.random.choice(list(self.machines))), self._ids_given)

    def _ids_given(self, result: Result) -> None:
        if isinstance(result, ProducerIdBlock):
            block = range(result.first_id, result.first_id + result.count)
            for other in self._id_blocks:
                must(
                    block.stop <= other.start or other.stop <= block.start,
                    f"producer ids are given twice: {block} and {other}",
                )
            self._id_blocks.append(block)

    def _leave(self) -> None:
        machine = self._pick()
        if machine is None or not machine.registered:
            return
        self.say(f"broker {machine.node_id} hands over and stops")
        self._commands_until_ms = self.now_ms + 5_000

        def stop() -> None:
            if machine.ended:
                return
            # What made it ready to stop may have moved its watermarks, too: nobody could look later.
            self.checker.check(machine)
            broker = machine.broker
            broker.stop_chores()
            broker.leave_cluster()
            broker.log_directories.close(high_watermarks=broker.replicas.high_watermarks())
            machine.end()
            self.dead[machine.node_id] = "killed"
            # The farewell does not reach a store that is out of reach.
            self._expire_after(machine.store, SESSION_MS, lambda: True)
            self.say(f"broker {machine.node_id} has stopped")
            self._later(lambda: self._restart(machine.node_id))

        machine.broker.hand_over(stop)

    # -- peace

    def _make_peace(self) -> None:
        self.say("peace")
        self._peace = True
        self._disturbed_ms = self.now_ms
        self._mood = []
        self.network.heal(set(self.network.cuts))
        self.network.slow.clear()
        for machine in self.machines.values():
            machine.slow = False
            if machine.store_cut:
                self._heal_store(machine)
            if not machine.ended and (machine.frozen or machine.hung):
                self._go_on(machine)
        for client in self.clients:
            client.stopped = isinstance(client, Producer)
        for node_id in self.directories.need_a_start():
            if not self.machines[node_id].ended:
                self._kill(self.machines[node_id])
        self._revive()

    def _revive(self) -> None:
        """Start what is dead, until nothing is."""
        for node_id, machine in list(self.machines.items()):
            if machine.ended:
                self._restart(node_id)
        self.events.at(self.now_ms + 100, None, self._revive)

    def _at_rest(self) -> bool:
        return next(self._restless(), None) is None

    def _unrest(self) -> str:
        return "; ".join(self._restless())

    def _restless(self) -> Iterator[str]:
        """What keeps the cluster from rest."""
        machines = list(self.machines.values())
        for machine in machines:
            if not machine.running or not machine.registered:
                yield f"{machine} is not back"
                return
        deciding = [machine.node_id for machine in machines if machine.broker.metadata.is_controller]
        if len(deciding) != 1:
            yield f"controllers: {deciding}"
        images = [machine.broker.image for machine in machines]
        if any((i.topics, i.brokers) != (images[0].topics, images[0].brokers) for i in images):
            yield "the brokers have different images"
        for producer in self.clients:
            if isinstance(producer, Producer) and not producer.idle:
                yield f"producer {producer.client_id} of {producer.topic}-{producer.index} waits"
        for machine in machines:
            metadata = machine.broker.metadata
            if metadata._submitting._submissions:
                yield f"{machine} has commands under way: {metadata._submitting}"
        for key, record in self.audit.partitions.items():
            yield from self._restless_partition(key, record.replicas, record.isr, record.leader)
            if record.adding or record.removing:
                yield f"{key} is being moved: {record}"

    def _restless_partition(
        self, key: tuple[str, int], replicas: tuple[int, ...], isr: tuple[int, ...], leader: int
    ) -> Iterator[str]:
        name = f"{key[0]}-{key[1]}"
        if leader != replicas[0] or set(isr) != set(replicas):
            yield f"{name}: leader {leader} ISR {isr} of {replicas}"
            return
        history = self.checker.histories.get((self.audit.topics[key[0]], key[1]))
        for node_id, machine in self.machines.items():
            partition = machine.broker.replicas.replica(*key)
            if node_id not in replicas:
                if partition is not None:
                    yield f"{name} is on {node_id}, too"
                continue
            if partition is None:
                yield f"{name} is not on {node_id}"
                continue
            directory = machine.broker.log_directories.directory_of(TopicPartition(*key)).directory_id
            if self.audit.partitions[key].directories[replicas.index(node_id)] != directory:
                yield f"{name} on {node_id} is in {directory}: {self.audit.partitions[key]}"
            if partition.leads != (node_id == leader):
                yield f"{name} on {node_id}: {partition!r}"
            end = 0 if history is None else history.end
            if not partition.log.log_end_offset == partition.high_watermark == end:
                yield f"{name} on {node_id}: {partition!r}, {end} committed"
            if partition.commits:
                yield f"{name} on {node_id}: {len(partition.commits)} wait for the watermark"
            if partition.replicas is not None and partition.replicas.pending_isr is not None:
                yield f"{name} on {node_id}: {partition.replicas}"

    def _check_end(self) -> None:
        """At rest: all that was sent is there, once."""
        for client in self.clients:
            if not isinstance(client, Producer) or client.gone or client.acks != -1:
                continue
            history = self.checker.histories[client.topic_id, client.index]
            for offset, batch in client.acknowledged:
                must(
                    history.has_batch(offset, client.producer_id, batch.sequence),
                    f"{client.topic}-{client.index}: {client.producer_id} lost sequence {batch.sequence}",
                )
            last = history.last_sequences.get(client.producer_id, -1)
            must(
                last == client._next_sequence - 1,
                f"{client.topic}-{client.index}: producer {client.producer_id} ends at {last}, "
                f"it sent {client._next_sequence}",
            )


def run(seed: int) -> str:
    """Live through a seed; a failure says how to see it again, and tells the end of the story."""
    world = ClusterWorld(seed)
    try:
        return world.simulate()
    except Exception as broken:
        told = "\n".join(world.story[-STORY_LINES:])
        again = f"python -m tests.simulation.cluster_world {seed}"
        raise type(broken)(f"seed {seed}: {broken}\n{told}\nagain: {again}") from broken


if __name__ == "__main__":
    for text in sys.argv[1:]:
        world = ClusterWorld(int(text), tell=True)
        try:
            print(world.simulate())
        except Broken as broken:
            print(f"seed {text}: {broken}")
            sys.exit(1)

"""A simulated cluster with 3,000 partitions loses a broker, and comes to rest.

The worlds of `test_simulation_cluster` have a handful of partitions and every kind of trouble. Here there is
one kind of trouble and many partitions: commits and ISR changes that are cut into parts, followers with
thousands of positions in a session, checkpoints of thousands of lines. Partitions with clients are looked at
after every event, as there, and all of them when a step has come to rest.
"""

from collections.abc import Callable

from tests.simulation import cluster_world
from tests.simulation.cluster_checks import Checker, must
from tests.simulation.cluster_machines import Machine

PARTITIONS = 3_000
TOPICS = 6
#: partitions of each topic with clients
WATCHED = 2
STEP_MS = 60_000
LOOK_MS = 100


class CrowdedChecker(Checker):
    """Looks at some partitions after every event, and at all when it is told to."""

    def __init__(self, like: Checker) -> None:
        super().__init__(like._store, like._machines)
        self.everything = False

    def check(self, machine: Machine | None) -> None:
        if self.everything:
            super().check(machine)
            return
        # What was committed to the store is kept for the look at everything.
        if machine is not None and machine.open:
            for number in range(TOPICS):
                for index in range(WATCHED):
                    partition = machine.broker.replicas.replica(f"t{number}", index)
                    if partition is not None and self._look(machine, partition):
                        self._check_isr((partition.topic, partition.index))
        for told in self.acknowledged:
            self._check_acknowledged(told)
        self.acknowledged.clear()


class CrowdedWorld(cluster_world.ClusterWorld):
    """Three brokers, many partitions, no trouble but what the story says."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._mood = []
        self.checker = self.crowded = CrowdedChecker(self.checker)

    def _topic_made(self, name: str, partitions: int) -> None:
        super()._topic_made(name, min(partitions, WATCHED))

    def look(self) -> None:
        """At everything."""
        self.crowded.everything = True
        for machine in self.running:
            self.checker.check(machine)
        self.crowded.everything = False

    def live(self) -> None:
        machines = self.machines.values()
        must(self.run_until(lambda: all(m.registered for m in machines), 5_000), "no start")
        for number in range(TOPICS):
            self._make_topic(f"t{number}", PARTITIONS // TOPICS, 3)
        self.wait(self.whole, "the topics were not made")
        self.run_for(500)
        self.look()
        self.lose(1, "without power")
        self._make_peace()
        self.wait(self._at_rest, "no rest")
        self.look()
        self._check_end()
        must(self.checker.acknowledged_count > 0, "nobody wrote anything")

    def wait(self, condition: Callable[[], bool], fault: str) -> None:
        """Until a condition holds, which takes a look at all partitions: now and then, not at every event."""
        deadline_ms = self.now_ms + STEP_MS
        while not condition():
            must(self.now_ms < deadline_ms, f"{fault}: {self._unrest()[:500]}")
            self.run_for(LOOK_MS)

    def whole(self) -> bool:
        return len(self.audit.partitions) == PARTITIONS and all(
            len(record.isr) == 3 for record in self.audit.partitions.values()
        )

    def lose(self, node_id: int, how: str) -> None:
        """A broker goes, the others lead, and it comes back."""
        machine = self.machines[node_id]
        machine.end(quietly=how != "killed")
        self.dead[node_id] = how
        self._expire_after(machine.store, cluster_world.SESSION_MS, lambda: True)

        def led_elsewhere() -> bool:
            return all(record.leader not in (-1, node_id) for record in self.audit.partitions.values())

        self.wait(led_elsewhere, f"nobody leads what broker {node_id} led")
        self.run_for(1_000)
        self.look()
        self._restart(node_id)
        self.wait(self.whole, f"not all in sync after broker {node_id} came back")
        self.look()


def test_brokers_with_thousands_of_partitions_go_and_come_back() -> None:
    world = CrowdedWorld(1)
    with world.checker.watching():
        world.live()

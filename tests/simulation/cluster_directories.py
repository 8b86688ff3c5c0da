"""Misfortune of log directories: disks that are away for a while, lost for good, swapped, or fail.

Every machine has one to three log directories. Between two starts of a machine

- a directory is taken out: an empty one stands in its place, or `log.dirs` does not name it any more; a later
  start finds it again, at the end every one. Nothing may be lost by that, whoever else is away or dead.
- a directory is lost for good, and the broker is told so. Only while others that are in sync have everything.
- two machines have one of their directories swapped. Neither may start before they are put back.
- the directories are named in another order.

While a machine runs a disk fails: whatever is done with it ends in an error, until the machine starts again.
Replicas are moved between the directories of a machine all the time.
"""

from typing import TYPE_CHECKING

from tests.simulation.cluster_machines import Machine
from tests.support.simulated_disk import SimulatedDisk, TakenOut
from tidelog.model.identifiers import RESERVED_DIRECTORIES, TopicPartition
from tidelog.storage.log_directory import LogDirectoryUnusable, read_meta_properties

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld


class Directories:
    """The directories of all machines of a world."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._log_dirs: dict[int, list[str]] = {}
        self._away: dict[int, dict[str, TakenOut]] = {}
        #: ids of those that are lost for good
        self._lost: dict[int, list[str]] = {}
        #: ids of those that went with a whole disk, which nobody has to be told
        self._wiped: dict[int, set[str]] = {}
        #: what shall happen before a machine starts again
        self._plans: dict[int, str] = {}
        #: machines with a disk that has failed
        self._failed: set[int] = set()

    def furnish(self, machine: Machine) -> None:
        """Before a machine's first start."""
        paths = [f"/{name}" for name in "abc"[: self._world.random.choice((1, 2, 2, 3))]]
        self._log_dirs[machine.node_id] = paths
        self._away[machine.node_id] = {}
        self._lost[machine.node_id] = []
        machine.log_dirs = list(paths)

    # -- trouble

    def take_away(self) -> None:
        self._plan("without a directory for a while")

    def lose(self) -> None:
        self._plan("without a directory for good")

    def _plan(self, what: str) -> None:
        machine = self._world._pick()
        if machine is not None:
            self._plans[machine.node_id] = what
            self._world._kill(machine)

    def swap(self) -> None:
        """Two machines end; each gets a directory of the other, and neither starts."""
        world = self._world
        running = [machine for machine in world.running if machine.open]
        if len(running) < 2:
            return
        one, other = world.random.sample(running, 2)
        for machine in (one, other):
            world._kill(machine)
            machine.disk = machine.disk.kill()
        world.say(f"a directory of {one.node_id} and one of {other.node_id} are swapped")
        mine, theirs = self._present(one.node_id)[0], self._present(other.node_id)[0]
        _swap(one.disk, mine, other.disk, theirs)
        for machine in (one, other):
            self._must_refuse(machine, other if machine is one else one)
        _swap(one.disk, mine, other.disk, theirs)

    def _must_refuse(self, machine: Machine, other: Machine) -> None:
        attempt = Machine(self._world, machine.node_id, machine.disk, machine.clock, life=machine.life)
        attempt.log_dirs = self._present(machine.node_id)
        attempt.store_cut = False
        try:
            attempt.start()
        except LogDirectoryUnusable as refused:
            assert f"belongs to broker {other.node_id}" in str(refused)
            attempt.end()
            if attempt.store is not None:
                attempt.store.expire()
        else:
            raise AssertionError(f"broker {machine.node_id} starts with a directory of {other.node_id}")

    def fail(self) -> None:
        """A disk of a running machine fails."""
        machine = self._world._pick()
        if machine is None or not machine.registered:
            return
        path = self._world.random.choice(machine.log_dirs)
        self._world.say(f"the disk {path} of broker {machine.node_id} fails")
        machine.disk.fail_directory(path)
        self._failed.add(machine.node_id)

    def move(self) -> None:
        """A replica shall move to another directory of its broker."""
        machine = self._world._pick()
        if machine is None or not machine.registered:
            return
        replicas = sorted((each.topic, each.index) for each in machine.broker.replicas)
        if replicas:
            place = TopicPartition(*self._world.random.choice(replicas))
            path = self._world.random.choice(machine.log_dirs)
            self._world.say(f"{place} of broker {machine.node_id} shall move to {path}")
            machine.broker.log_moves.move(place, path)

    # -- starts

    def before_start(self, machine: Machine, *, wiped: bool, may_lose: bool) -> bool:
        """Have happen to the disk what was planned; say whether a directory is lost for good."""
        node_id, world = machine.node_id, self._world
        self._failed.discard(node_id)
        plan = self._plans.pop(node_id, "")
        lost = False
        if wiped:
            self._away[node_id].clear()
            self._wiped.setdefault(node_id, set()).update(self._known(node_id))
        else:
            self._bring_back(machine)
            present = self._present(node_id)
            if plan and not world._peace and len(present) > 1:
                path = world.random.choice(present)
                if plan == "without a directory for a while":
                    self._take_out(machine, path)
                elif may_lose and read_meta_properties(machine.disk, path) is not None:
                    self._discard(machine, path)
                    lost = True
        world.random.shuffle(self._log_dirs[node_id])
        machine.log_dirs = list(self._log_dirs[node_id])
        machine.lost_directories = list(self._lost[node_id])
        return lost

    def _present(self, node_id: int) -> list[str]:
        return [path for path in self._log_dirs[node_id] if path not in self._away[node_id]]

    def _known(self, node_id: int) -> set[str]:
        """The ids of directories in which the cluster believes replicas of a broker."""
        known = {
            record.directories[record.replicas.index(node_id)]
            for record in self._world.audit.partitions.values()
            if node_id in record.replicas
        }
        return known - RESERVED_DIRECTORIES

    def _bring_back(self, machine: Machine) -> None:
        world, disk = self._world, machine.disk
        away, log_dirs = self._away[machine.node_id], self._log_dirs[machine.node_id]
        for path in list(away):
            if not (world._peace or world.random.random() < 0.5):
                continue
            taken = away.pop(path)
            if path in log_dirs:
                log_dirs.remove(path)
            if disk.exists(path) and read_meta_properties(disk, path) is None:
                disk.remove_tree(path)
            elif disk.exists(path):
                log_dirs.append(path)
                while disk.exists(path):
                    path += "+"
            disk.put_in(path, taken)
            log_dirs.append(path)
            world.say(f"broker {machine.node_id} finds its directory {path} again")

    def _take_out(self, machine: Machine, path: str) -> None:
        world, log_dirs = self._world, self._log_dirs[machine.node_id]
        self._away[machine.node_id][path] = machine.disk.take_out(path)
        if world.random.random() < 0.5:
            log_dirs.remove(path)
            world.say(f"broker {machine.node_id} has no directory {path} any more")
        else:
            world.say(f"the directory {path} of broker {machine.node_id} is empty")

    def _discard(self, machine: Machine, path: str) -> None:
        properties = read_meta_properties(machine.disk, path)
        assert properties is not None
        machine.disk.take_out(path)
        # With it goes whatever an earlier loss took before the cluster heard of it, as the broker would say.
        wiped = sorted(self._wiped.get(machine.node_id, ()))
        self._lost[machine.node_id] += [properties.directory_id, *wiped]
        self._world.say(f"the directory {path} of broker {machine.node_id} is lost, and it is told so")

    # -- the end

    def need_a_start(self) -> list[int]:
        """Machines that must start again before everything can be whole."""
        return [node_id for node_id in self._log_dirs if self._away[node_id] or node_id in self._failed]


def _swap(one: SimulatedDisk, path: str, other: SimulatedDisk, other_path: str) -> None:
    mine, theirs = one.take_out(path), other.take_out(other_path)
    one.put_in(path, theirs)
    other.put_in(other_path, mine)

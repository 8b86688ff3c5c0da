"""How far behind its partitions each group is that this broker coordinates.

Lag is the high watermark less the committed offset, as `tidelog group describe` shows it. The watermark is
known for partitions that have a replica here, led or followed (a follower's is a fetch behind). For the
others their leaders are asked (see `leader_watermarks`), and the last answer counts; until there is one a
partition is counted as one without lag. Where there are more groups than the limits allow, those with most
lag come first.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.telemetry.exposition import family
from tidelog.broker.telemetry.leader_watermarks import LeaderWatermarks

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.groups.machine import GroupMachine

GROUPS_PER_STEP = 20


class _Group(NamedTuple):
    name: str
    members: int
    lag: int
    unknown: int
    #: topic, partition, lag
    partitions: list[tuple[str, int, int]]


@dataclass(slots=True)
class GroupLags:
    """The groups of one broker."""

    settings: LiveSettings
    replicas: Replicas
    groups: "Deferred[GroupCoordinator]"
    leader_watermarks: LeaderWatermarks

    def run(self) -> Iterator[str]:
        """The families of groups, piece by piece."""
        states: Counter[tuple[str, str]] = Counter()
        groups: list[_Group] = []
        if (coordinator := self.groups.made) is not None:
            self.leader_watermarks.begin()
            for machine in coordinator.loaded_machines():
                for listed in machine.list_groups(frozenset(), frozenset()):
                    states[str(listed["group_type"]).lower(), str(listed["group_state"])] += 1
                names = dict.fromkeys((*machine.groups, *machine.durable.consumer_groups))
                for number, name in enumerate(names, 1):
                    groups.append(self._look(machine, name))
                    if number % GROUPS_PER_STEP == 0:
                        yield ""
                yield ""
            self.leader_watermarks.ask()
        groups.sort(key=lambda group: (-group.lag, group.name))
        yield family("tidelog_groups", [(labels, count) for labels, count in sorted(states.items())])
        yield from self._families(groups)

    def _look(self, machine: "GroupMachine", name: str) -> _Group:
        classic = machine.groups.get(name)
        modern = machine.durable.consumer_groups.get(name)
        found = classic or modern
        unknown = 0
        partitions: list[tuple[str, int, int]] = []
        for topic, index, value in machine.durable.offsets.of_group(name):
            end_offset = self._end_offset(topic, index)
            if end_offset is None:
                unknown += 1
            else:
                partitions.append((topic, index, max(0, end_offset - value.offset)))
        members = 0 if found is None else len(found.members)
        return _Group(name, members, sum(lag for _, _, lag in partitions), unknown, partitions)

    def _end_offset(self, topic: str, index: int) -> int | None:
        replica = self.replicas.replica(topic, index)
        return self.leader_watermarks.get(topic, index) if replica is None else replica.high_watermark

    def _families(self, groups: list[_Group]) -> Iterator[str]:
        settings = self.settings
        shown = groups[: settings.get_int("tidelog.metrics.groups.max")]
        yield family("tidelog_group_members", [((g.name,), g.members) for g in shown])
        yield family("tidelog_group_lag", [((g.name,), g.lag) for g in shown])
        yield family("tidelog_group_partitions_without_lag", [((g.name,), g.unknown) for g in shown])
        rows = [((g.name, topic, str(index)), lag) for g in shown for topic, index, lag in g.partitions]
        limit = settings.get_int("tidelog.metrics.group.partitions.max")
        yield family("tidelog_group_partition_lag", rows[:limit])
        partitions = sum(len(group.partitions) for group in groups)
        yield family("tidelog_groups_left_out", [((), len(groups) - len(shown))])
        yield family("tidelog_group_partitions_left_out", [((), partitions - min(len(rows), limit))])

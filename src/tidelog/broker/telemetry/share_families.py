"""Share groups in numbers.

What is in flight, and what was counted of deliveries and acknowledgements, is told by the leaders of
partitions; the lag by whoever keeps the state of share partitions, also while no member is there; members by
the group's coordinator. So a group has series on several brokers, and their sum is the group's.

Series go to the groups with most lag or members. Counters go to the groups that were seen first, which keep
them: counts that moved between series would look like resets.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.telemetry.exposition import Sample, family, single
from tidelog.broker.telemetry.leader_watermarks import LeaderWatermarks
from tidelog.shares.in_flight import in_flight
from tidelog.shares.redelivery import lag
from tidelog.shares.schemas import ShareKey
from tidelog.shares.states import AcknowledgeType

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.shares.coordinator import StoredState

PARTITIONS_PER_STEP = 250
RUNS_PER_STEP = 2_000
_STATES = ("acquired", "available", "archiving", "archived", "acknowledged")


@dataclass(slots=True)
class ShareFamilies:
    """The share groups of one broker."""

    metrics: Metrics
    settings: LiveSettings
    metadata: Metadata
    replicas: Replicas
    groups: "Deferred[GroupCoordinator]"
    shares: "Deferred[Sharing]"
    share_watermarks: LeaderWatermarks
    #: groups whose counts have series, in the order in which they were first seen
    _shown: dict[str, None] = field(init=False, default_factory=dict)

    def run(self) -> Iterator[str]:
        """The families of share groups, piece by piece."""
        lags: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        states: dict[str, Counter[str]] = {}
        if (sharing := self.shares.made) is not None:
            yield from self._look_at_lags(sharing, lags, unknown)
            yield from self._look_at_flight(sharing, states)
        members = self._members()
        limit = self.settings.get_int("tidelog.metrics.groups.max")
        yield _largest("tidelog_share_group_members", members, limit)
        yield _largest("tidelog_share_group_lag", lags, limit)
        yield _largest("tidelog_share_group_partitions_without_lag", unknown, limit)
        flying = sorted(states, key=lambda name: (-states[name].total(), name))[:limit]
        yield family(
            "tidelog_share_group_records",
            [((name, state), states[name][state]) for name in flying for state in _STATES],
        )
        yield from self._counted(limit)
        known = {*lags, *unknown, *states, *members, *self.metrics.shares.groups}
        yield single("tidelog_share_groups_left_out", max(0, len(known) - limit))

    def _members(self) -> Counter[str]:
        members: Counter[str] = Counter()
        if (coordinator := self.groups.made) is not None:
            for machine in coordinator.loaded_machines():
                for name, group in machine.durable.share_groups.items():
                    members[name] = len(group.members)
        return members

    def _look_at_lags(self, sharing: "Sharing", lags: Counter[str], unknown: Counter[str]) -> Iterator[str]:
        """Count what is still to be dealt with; partitions whose end is not known yet are counted apart."""
        self.share_watermarks.begin()
        number = 0
        for machine in sharing.coordinator.loaded_machines():
            for key, stored in list(machine.stored.items()):
                number += 1
                if number % PARTITIONS_PER_STEP == 0:
                    yield ""
                self._add_lag(key, stored, lags, unknown)
        self.share_watermarks.ask()

    def _add_lag(
        self, key: ShareKey, stored: "StoredState", lags: Counter[str], unknown: Counter[str]
    ) -> None:
        topic = self.metadata.image.topic_names_by_id.get(key.topic_id)
        if topic is None or stored.start_offset < 0:
            return
        replica = self.replicas.replica(topic, key.partition)
        end_offset = (
            self.share_watermarks.get(topic, key.partition) if replica is None else replica.high_watermark
        )
        if end_offset is None:
            unknown[key.group_id] += 1
        else:
            found = lag(end_offset, stored.start_offset, stored.delivery_complete_count)
            lags[key.group_id] += max(0, found)

    def _look_at_flight(self, sharing: "Sharing", states: dict[str, Counter[str]]) -> Iterator[str]:
        partitions = sharing.partitions
        partitions.settle()
        looked_at = 0
        for shared in partitions.of_group(None):
            runs = shared.machine.runs
            found = in_flight(runs)
            counts = states.setdefault(shared.machine.key.group_id, Counter())
            counts.update({state: getattr(found, state) for state in _STATES})
            looked_at += 1 + len(runs)
            if looked_at > RUNS_PER_STEP:
                looked_at = 0
                yield ""

    def _counted(self, limit: int) -> Iterator[str]:
        groups = self.metrics.shares.groups
        for gone in [name for name in self._shown if name not in groups]:
            del self._shown[gone]
        for name in groups:
            if len(self._shown) >= limit:
                break
            self._shown[name] = None
        rows = [(name, groups[name]) for name in list(self._shown)[:limit]]
        deliveries: list[Sample] = [
            ((name, str(count)), records)
            for name, counts in rows
            for count, records in sorted(counts.deliveries.items())
        ]
        acknowledgements: list[Sample] = [
            ((name, AcknowledgeType(kind).name.lower()), records)
            for name, counts in rows
            for kind, records in sorted(counts.acknowledgements.items())
        ]
        letters: list[Sample] = []
        for name, counts in rows:
            letters.append(((name, "written"), counts.dead_letters))
            letters.append(((name, "given up"), counts.dead_letters_given_up))
        yield family("tidelog_share_group_deliveries_total", deliveries)
        yield family("tidelog_share_group_acknowledgements_total", acknowledgements)
        yield family(
            "tidelog_share_group_lock_expiries_total",
            [((name,), counts.lock_expiries) for name, counts in rows],
        )
        yield family("tidelog_share_group_dead_letters_total", letters)


def _largest(name: str, counts: Mapping[str, int], limit: int) -> str:
    """A family by group, of the groups with the largest numbers."""
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return family(name, [((group,), count) for group, count in shown])

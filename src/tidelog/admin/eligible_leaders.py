"""Who may lead partitions that have no leader (KIP-966), asked with DescribeTopicPartitions page by page.

A partition without a leader waits for its eligible leader replicas, one of which is enough. If there are none
it waits for all of the last known ones: their machines may have lost the ends of their logs, and the longest
log leads. A broker that is there is waited for as well if the log directory of its replica is not. Kafka
before 4.0 does not have the API; then nothing is known.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tidelog.admin.diagnosis import SeenPartition

PARTITIONS_PER_PAGE = 2_000
PAGES_MAX = 100

Ask = Callable[[dict[str, Any]], Any]


class Eligible(NamedTuple):
    """The replicas that may lead next."""

    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    #: replicas on dead brokers or in directories that are not there
    offline: tuple[int, ...] = ()

    def without_directory(self, alive: Iterable[int]) -> tuple[int, ...]:
        """Who is there, and is waited for all the same: the directory of its replica is not."""
        return tuple(
            broker
            for broker in self.elr or self.last_known_elr
            if broker in set(alive) and broker in self.offline
        )

    def awaited(self, alive: Iterable[int]) -> tuple[int, ...]:
        """Who has to come back before somebody can lead; nobody in particular if it is not known."""
        return tuple(broker for broker in self.elr or self.last_known_elr if broker not in set(alive))

    def sentence(self, alive: Iterable[int]) -> str:
        """What a partition without a leader waits for; empty if that is not known."""
        stuck = self.without_directory(alive)
        remedy = f"; {without_directory_text(stuck)}" if stuck else ""
        if len(self.elr) > 1:
            names = " and ".join(map(str, self.elr))
            return f"waits for one of the brokers {names}, which have everything{remedy}"
        if self.elr:
            return f"waits for broker {self.elr[0]}, which has everything{remedy}"
        away = self.awaited(alive)
        if away or stuck:
            waiting = " and ".join(str(broker) for broker in self.last_known_elr if broker in (*away, *stuck))
            return f"waits for all of {waiting} to return; then the longest log leads{remedy}"
        if self.last_known_elr:
            return "waits until its replicas have said how long their logs are; the longest will lead"
        return ""


def without_directory_text(brokers: Iterable[int]) -> str:
    """What to do about brokers that are there without the log directories that are waited for."""
    names = " and ".join(str(broker) for broker in sorted(brokers))
    return (
        f"a log directory of broker {names} is not there though the broker is: mount it and restart the"
        " broker; or, if it is lost for good, name it in tidelog.lost.directories; or tidelog cluster elect"
        " --unclean"
    )


def awaited_by(offline: "Iterable[SeenPartition]", alive: set[int]) -> set[int]:
    """Who has to come back before these partitions can be led; where it is open, all that are away."""
    awaited: set[int] = set()
    for partition in offline:
        waits = _eligible(partition)
        missing = waits.awaited(alive)
        if not missing and not waits.without_directory(alive):
            missing = tuple(broker for broker in partition.replicas if broker not in alive)
        awaited.update(missing)
    return awaited


def without_directory_by(offline: "Iterable[SeenPartition]", alive: set[int]) -> set[int]:
    """The brokers that are there while these partitions wait for log directories of theirs."""
    return {broker for partition in offline for broker in _eligible(partition).without_directory(alive)}


def _eligible(partition: "SeenPartition") -> Eligible:
    return Eligible(partition.elr, partition.last_known_elr, partition.offline_replicas)


def eligible_leaders(ask: Ask, topics: Iterable[str]) -> dict[tuple[str, int], Eligible]:
    """The eligible leaders of all partitions of these topics that have any."""
    names = sorted(set(topics))
    found: dict[tuple[str, int], Eligible] = {}
    cursor: Any = None
    for _ in range(PAGES_MAX if names else 0):
        answer = ask(
            {
                "topics": [{"name": name} for name in names],
                "response_partition_limit": PARTITIONS_PER_PAGE,
                "cursor": cursor,
            }
        )
        if answer is None:
            break
        for topic in answer.topics:
            for row in topic.partitions:
                elr = tuple(int(broker) for broker in row.eligible_leader_replicas or ())
                last_known = tuple(int(broker) for broker in row.last_known_elr or ())
                away = tuple(int(broker) for broker in row.offline_replicas or ())
                if elr or last_known:
                    found[str(topic.name), int(row.partition_index)] = Eligible(elr, last_known, away)
        following = answer.next_cursor
        if following is None:
            break
        names = [name for name in names if name >= str(following.topic_name)]
        cursor = {
            "topic_name": str(following.topic_name),
            "partition_index": int(following.partition_index),
        }
    return found

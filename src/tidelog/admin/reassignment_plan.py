"""Which replicas go where: reassignment plans as values, computed without asking or changing anything.

A plan is a list of moves: a partition, its replicas before and after; the first replica is the preferred
leader. It is written and read in the JSON of Kafka's own tools:

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}

`spread` balances topics over brokers and moves as little as it can: replicas that may stay do, missing ones
go to the broker with the fewest, then the fullest brokers give to the emptiest, then preferred leaders are
evened out by reordering, which copies nothing. `drain` empties one broker. Both prefer a rack that a
partition is not in yet, and no step of balancing takes a partition out of one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

PLAN_VERSION = 1


class PlanRefused(ValueError):
    """A plan that cannot be made or read; the message says why."""


class Assignment(NamedTuple):
    """The replicas of one partition; the first is the preferred leader."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


class Move(NamedTuple):
    """What happens to one partition."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        """The brokers that have to copy the partition."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """Moves that are to be made together; partitions that stay as they are do not appear."""

    moves: tuple[Move, ...]

    @classmethod
    def between(cls, before: Iterable[Assignment], after: Iterable[Assignment]) -> "ReassignmentPlan":
        """The moves that turn one state into the other; a partition that does not exist is refused."""
        known = {(item.topic, item.partition): item.replicas for item in before}
        moves = []
        for item in after:
            present = known.get((item.topic, item.partition))
            if present is None:
                raise PlanRefused(f"there is no partition {item.topic}-{item.partition}")
            if present != item.replicas:
                moves.append(Move(item.topic, item.partition, present, item.replicas))
        return cls(tuple(moves))

    def as_json(self) -> dict[str, Any]:
        return plan_json(Assignment(move.topic, move.partition, move.after) for move in self.moves)

    def copied_bytes(self, sizes: Mapping[tuple[str, int], int]) -> int:
        """How much is copied, from the size of each partition."""
        return sum(len(move.adding) * sizes.get((move.topic, move.partition), 0) for move in self.moves)


def plan_json(assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Assignments in the JSON of Kafka's tools."""
    partitions = [
        {"topic": item.topic, "partition": item.partition, "replicas": list(item.replicas)}
        for item in assignments
    ]
    return {"version": PLAN_VERSION, "partitions": partitions}


def read_plan(text: str) -> list[Assignment]:
    """Read assignments from the JSON of Kafka's tools; everything that is wrong with it is an error."""
    try:
        document = json.loads(text)
    except ValueError as fault:
        raise PlanRefused(f"the plan is not JSON: {fault}") from fault
    if not isinstance(document, dict) or document.get("version") != PLAN_VERSION:
        raise PlanRefused('the plan must be an object with "version": 1 and "partitions"')
    found: dict[tuple[str, int], Assignment] = {}
    for entry in document.get("partitions") or ():
        match entry:
            case {"topic": str(topic), "partition": int(partition), "replicas": [*replicas]} if replicas:
                if not all(isinstance(broker, int) and broker >= 0 for broker in replicas):
                    raise PlanRefused(f"{topic}-{partition}: replicas are broker numbers, not {replicas}")
                if len(set(replicas)) != len(replicas):
                    raise PlanRefused(f"{topic}-{partition}: a broker is named twice in {replicas}")
                if (topic, partition) in found:
                    raise PlanRefused(f"{topic}-{partition} is in the plan twice")
                found[topic, partition] = Assignment(topic, partition, tuple(replicas))
            case _:
                raise PlanRefused(f"{json.dumps(entry)} has not topic, partition and replicas")
    if not found:
        raise PlanRefused("the plan has no partitions")
    return list(found.values())


class _Balance:
    """Assignments under construction, with what each broker holds and would lead."""

    def __init__(self, racks: Mapping[int, str | None], present: Iterable[Assignment]) -> None:
        self.racks = racks
        self.held: Counter[int] = Counter()
        self.led: Counter[int] = Counter()
        for item in present:
            self.held.update(item.replicas)
            self.led[item.replicas[0]] += 1

    def rack_count(self, replicas: Iterable[int]) -> int:
        """How many racks the replicas are in; a broker without one counts as its own."""
        return len({self.racks.get(broker) or broker for broker in replicas})

    def best_addition(self, replicas: Sequence[int], candidates: Iterable[int]) -> int | None:
        """The broker to add: in a rack not used yet where possible, then the one that holds least."""
        free = [broker for broker in candidates if broker not in replicas]
        return min(
            free,
            key=lambda broker: (-self.rack_count([*replicas, broker]), self.held[broker], broker),
            default=None,
        )

    def replace(self, item: Assignment, replicas: tuple[int, ...]) -> Assignment:
        """Give a partition other replicas and keep the counts right."""
        self.held.subtract(item.replicas)
        self.led[item.replicas[0]] -= 1
        self.held.update(replicas)
        self.led[replicas[0]] += 1
        return item._replace(replicas=replicas)


def spread(
    topics: Sequence[Assignment],
    racks: Mapping[int, str | None],
    *,
    replication_factor: int | None = None,
) -> ReassignmentPlan:
    """Balance partitions over the brokers of `racks` (broker → rack), with as few copies as it takes."""
    brokers = sorted(racks)
    wanted = max((replication_factor or len(item.replicas) for item in topics), default=0)
    if wanted > len(brokers):
        raise PlanRefused(f"{wanted} replicas need as many brokers, and there are {len(brokers)}")
    balance = _Balance(racks, [])
    # What may stay is counted first, so that what is missing goes where least is kept.
    kept = [
        tuple(broker for broker in item.replicas if broker in racks)[
            : replication_factor or len(item.replicas)
        ]
        for item in topics
    ]
    for replicas in kept:
        balance.held.update(replicas)
    after = []
    for item, replicas in zip(topics, kept, strict=True):
        while len(replicas) < (replication_factor or len(item.replicas)):
            addition = balance.best_addition(replicas, brokers)
            assert addition is not None, "there are enough brokers"
            replicas = (*replicas, addition)
            balance.held[addition] += 1
        balance.led[replicas[0]] += 1
        after.append(item._replace(replicas=replicas))
    _even_replicas(after, balance, brokers)
    _even_leaders(after, balance)
    return ReassignmentPlan.between(topics, after)


def drain(
    partitions: Sequence[Assignment], broker_id: int, racks: Mapping[int, str | None]
) -> ReassignmentPlan:
    """Move everything off a broker to the others of `racks`, evenly; nothing else moves."""
    others = sorted(set(racks) - {broker_id})
    balance = _Balance(racks, partitions)
    after = []
    for item in partitions:
        if broker_id not in item.replicas:
            continue
        staying = tuple(broker for broker in item.replicas if broker != broker_id)
        substitute = balance.best_addition(staying, others)
        if substitute is None:
            raise PlanRefused(
                f"{item.topic}-{item.partition} has {len(item.replicas)} replicas, and without broker "
                f"{broker_id} there are only {len(others)} brokers"
            )
        replicas = tuple(substitute if broker == broker_id else broker for broker in item.replicas)
        if replicas[0] == substitute:
            # The new preferred leader may be any of them: the one that leads least.
            leader = min(replicas, key=lambda broker: (balance.led[broker], broker))
            replicas = (leader, *(broker for broker in replicas if broker != leader))
        after.append(balance.replace(item, replicas))
    return ReassignmentPlan.between(partitions, after)


def with_leader(item: Assignment, leader: int) -> Assignment:
    """The same replicas with another one preferred."""
    if leader not in item.replicas:
        raise PlanRefused(
            f"broker {leader} has no replica of {item.topic}-{item.partition}: its replicas are "
            f"{', '.join(map(str, item.replicas))}"
        )
    return item._replace(replicas=(leader, *(broker for broker in item.replicas if broker != leader)))


def _even_replicas(after: list[Assignment], balance: _Balance, brokers: Sequence[int]) -> None:
    """Let the fullest brokers give to the emptiest until no step helps."""
    for _ in range(sum(len(item.replicas) for item in after)):
        if not _give_one(after, balance, brokers):
            return


def _give_one(after: list[Assignment], balance: _Balance, brokers: Sequence[int]) -> bool:
    by_load = sorted(brokers, key=lambda broker: (balance.held[broker], broker))
    for giver in reversed(by_load):
        for taker in by_load:
            if balance.held[giver] - balance.held[taker] < 2:
                break
            for index, item in enumerate(after):
                if giver not in item.replicas or taker in item.replicas:
                    continue
                replicas = tuple(taker if broker == giver else broker for broker in item.replicas)
                if balance.rack_count(replicas) >= balance.rack_count(item.replicas):
                    after[index] = balance.replace(item, replicas)
                    return True
    return False


def _even_leaders(after: list[Assignment], balance: _Balance) -> None:
    """Reorder replicas so that every broker is preferred leader about equally often."""
    changed = True
    while changed:
        changed = False
        for index, item in enumerate(after):
            best = min(item.replicas, key=lambda broker: (balance.led[broker], broker))
            if balance.led[item.replicas[0]] - balance.led[best] >= 2:
                after[index] = balance.replace(item, with_leader(item, best).replicas)
                changed = True

"""The commit protocol of the exactly-once sink under every schedule up to a bound, and random ones."""

import itertools
import random
from types import ModuleType

import pytest

from tests.unit.pipelines.sink_commit_mutants import MUTANTS, mutant
from tests.unit.pipelines.sink_commit_world import ABORTED, COMMITTED, OPEN, JobWorld, World
from tidelog.pipelines import commit_protocol
from tidelog.pipelines.commit_protocol import (
    CommitLog,
    Decision,
    Records,
    Span,
    Transaction,
    batch_of,
    check_query_name,
    driver_transactional_id,
    is_rubbish,
    transaction_name,
    transaction_prefix,
)

RANDOM_RUNS = 1_500
MUTANT_RUNS = 4_000
#: more steps than a driver of one batch takes
STEPS_MAX = 24


def run_driver(world: World, driver: str, steps: int) -> None:
    """So many steps of a driver; its tasks run along."""
    for _ in range(steps):
        if driver not in world.actors:
            return
        world.step(driver)
        for name in list(world.actors):
            if name.startswith("attempt"):
                world.step(name)


def bounded_schedules(protocol: ModuleType, long_attempts: float = 0.0) -> None:
    """A driver stops anywhere, a second one anywhere, the first goes on, dies anywhere, and so the second."""
    for first, second in itertools.product(range(STEPS_MAX), repeat=2):
        for third in (0, 1, 2, 3, 5, 8, STEPS_MAX):
            world = World(protocol, batches=1, partitions=2)
            world.long_attempts = long_attempts
            one = world.start_driver()
            run_driver(world, one, first)
            two = world.start_driver()
            run_driver(world, two, second)
            run_driver(world, one, third)
            if third % 2 and one in world.actors:
                world.crash(one)
            elif third == 2 and two in world.actors:
                world.crash(two)
            world.finish()
            world.check_end()
            assert not open_transactions(world), "left open"


def open_transactions(world: World) -> list[str]:
    return [name for name, known in world.cluster.transactions.items() if known.state == OPEN]


def random_schedule(protocol: ModuleType, seed: int) -> World:
    choose = random.Random(seed)
    world = World(protocol, batches=choose.randint(1, 3), partitions=choose.randint(1, 2), choose=choose)
    world.extra_attempts, world.dying_attempts = choose.choice([0, 0.5]), choose.choice([0, 0.3])
    world.long_attempts = choose.choice([0, 0, 0.3, 1])
    world.start_driver()
    crashes, drivers, time_outs = choose.randint(0, 3), choose.randint(1, 3), choose.randint(0, 3)
    cleanings = choose.choice([0, 0, 0, 1])
    favourite = None
    for _ in range(choose.randint(10, 150)):
        event = choose.random()
        if event < 0.04 and crashes and world.actors:
            crashes -= 1
            world.crash(choose.choice(list(world.actors)))
        elif event < 0.08 and drivers:
            drivers -= 1
            world.start_driver()
        elif event < 0.12 and time_outs:
            time_outs -= world.time_out()
        elif event < 0.14 and cleanings:
            cleanings -= world.clean()
        elif world.actors:
            # Bursts: long stretches of one actor find other things than fair turns.
            if favourite not in world.actors or choose.random() < 0.3:
                favourite = choose.choice(list(world.actors))
            world.step(favourite)  # type: ignore[arg-type]
    world.finish()
    world.check_end()
    # A query that has lost records does not go on, so nothing is swept.
    assert world.lost or not open_transactions(world), "left open"
    return world


@pytest.mark.parametrize("long_attempts", [0.0, 0.5, 1.0], ids=["short", "some long", "all long"])
def test_every_schedule_of_two_drivers_up_to_a_bound(long_attempts: float) -> None:
    bounded_schedules(commit_protocol, long_attempts)


def test_random_schedules() -> None:
    seen = {"too old": 0, "fenced": 0, "aborted": 0, "published": 0, "both": 0}
    for seed in range(RANDOM_RUNS):
        world = random_schedule(commit_protocol, seed)
        seen["too old"] += bool(world.too_old)
        seen["fenced"] += world.cluster.driver_epoch > world.batches
        states = {(known.state, known.published) for known in world.cluster.transactions.values()}
        seen["published"] += (ABORTED, 1) in states
        seen["both"] += {(ABORTED, 1), (COMMITTED, 0)} <= states
        seen["aborted"] += any(known.state == ABORTED for known in world.cluster.transactions.values())
    assert min(seen.values()) > RANDOM_RUNS // 50, f"the schedules do not reach enough: {seen}"


def random_job(protocol: ModuleType, seed: int) -> JobWorld:
    """A batch job without a name: tasks that fail, a cluster that is away, a driver that is killed."""
    choose = random.Random(seed)
    world = JobWorld(
        protocol, choose, failing_requests=choose.choice([0, 0.1, 0.2]), failing_tasks=choose.choice([0, 0.5])
    )
    steps_max = choose.choice([None, None, choose.randint(1, 40)])
    world.run(steps_max)
    world.check_job(was_killed=steps_max is not None)
    return world


def test_jobs_without_a_name_are_visible_whole_or_not_at_all() -> None:
    seen = dict.fromkeys(["saved", "given up, all", "given up, nothing", "unknown", "None"], 0)
    for seed in range(RANDOM_RUNS):
        world = random_job(commit_protocol, seed)
        end = str(world.end)
        if end == "given up":
            end += ", all" if world.copies() else ", nothing"
        seen[end] += 1
    assert min(seen.values()) > RANDOM_RUNS // 100, f"the jobs do not reach enough: {seen}"


def notices(protocol: ModuleType) -> bool:
    try:
        for seed in range(MUTANT_RUNS):
            random_job(protocol, seed)
        for seed in range(MUTANT_RUNS):
            random_schedule(protocol, seed)
        lost_is_told(protocol)
        cleaned_before_the_decision(protocol)
        bounded_schedules(protocol)
        bounded_schedules(protocol, 0.5)
    except (AssertionError, KeyError):
        return True
    return False


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_wrong_edits_are_noticed(name: str, old: str, new: str) -> None:
    assert notices(mutant(old, new)), f"nobody notices: {name}"


def timed_out_after_the_decision(protocol: ModuleType, steps: int, *, cleaned: bool) -> tuple[World, bool]:
    """The driver dies after so many steps; what is decided and open times out; the next driver comes."""
    world = World(protocol, batches=1, partitions=2)
    driver = world.start_driver()
    run_driver(world, driver, steps)
    if driver in world.actors:
        world.crash(driver)
    decided = world.cluster.decided()
    timed_out = [
        known for name, known in world.cluster.transactions.items() if name in decided and known.state == OPEN
    ]
    for known in timed_out:
        known.state, known.cleaned = ABORTED, cleaned
    driver = world.start_driver()
    run_driver(world, driver, 2 * STEPS_MAX)
    return world, bool(timed_out)


def lost_is_told(protocol: ModuleType) -> None:
    """A decided transaction that was aborted all the same is published; if it cannot be: never silent."""
    for steps in range(STEPS_MAX):
        world, timed_out = timed_out_after_the_decision(protocol, steps, cleaned=True)
        assert timed_out == bool(world.lost), f"after {steps} steps"
        assert not (timed_out and world.committed_batch_id == 0), "the batch must not count as committed"
        world, _ = timed_out_after_the_decision(protocol, steps, cleaned=False)
        world.check_end()


def cleaned_before_the_decision(protocol: ModuleType) -> None:
    """What is not in the log any more is not decided: the batch is given up whole, and tried again."""
    for long_attempts in (0.0, 1.0):
        world = World(protocol, batches=1, partitions=2)
        world.long_attempts = long_attempts
        driver = world.start_driver()
        for _ in range(STEPS_MAX):
            run_driver(world, driver, 1)
            if not any(name.startswith("attempt") for name in world.actors) and world.cluster.transactions:
                break
        for known in world.cluster.transactions.values():
            known.state, known.cleaned = ABORTED, known.written
        run_driver(world, driver, STEPS_MAX)
        assert world.too_old and not world.lost
        world.finish()
        world.check_end()


def test_what_was_cleaned_before_the_decision_is_written_again() -> None:
    cleaned_before_the_decision(commit_protocol)


def test_a_decided_transaction_that_the_cluster_aborted_is_published_or_told() -> None:
    lost_is_told(commit_protocol)


def test_decisions_survive_their_stored_form() -> None:
    names = [transaction_name("q", 7, partition, "a0") for partition in range(3)]
    decision = Decision("q", 7, tuple(Transaction(name, 4_000 + i, i) for i, name in enumerate(names)))
    assert Decision.from_json(decision.to_json()) == decision
    spans = (Span("out", 0, 5, 9), Span("out", 2, 1, 3))
    counts = {transaction.producer_id: 3 for transaction in decision.transactions}
    decision = Decision("q", 7, decision.transactions[:2], decision.transactions[2:], Records(spans, counts))
    assert Decision.from_json(decision.to_json()) == decision
    with pytest.raises(ValueError, match="version 9"):
        Decision.from_json(b'{"version": 9}')


def test_names_tell_their_batch() -> None:
    name = transaction_name("q.x", 12, 3, "abc")
    assert batch_of("q.x", name) == 12
    assert batch_of("q", name) is None
    assert batch_of("q.x", driver_transactional_id("q.x")) is None
    other = "q.x.batch.3"
    assert batch_of("q.x", transaction_name(other, 0, 0, "abc")) is None, "that of another query"
    assert batch_of("q.x", driver_transactional_id(other)) is None
    with pytest.raises(ValueError, match="batch"):
        check_query_name(other)
    check_query_name("q.x.batch")
    assert batch_of("q.x", transaction_prefix("q.x") + "nonsense") is None


def test_rubbish_is_what_no_decision_can_name() -> None:
    def opened(batch_id: int) -> Transaction:
        return Transaction(transaction_name("q", batch_id, 0, "a"), 1, 0)

    assert is_rubbish("q", 5, opened(5)) and is_rubbish("q", 5, opened(1))
    assert not is_rubbish("q", 5, opened(6))
    assert not is_rubbish("p", 5, opened(5))


def test_a_log_is_settled_when_its_decision_is_done() -> None:
    decision = Decision("q", 3, ())
    assert CommitLog(None).is_settled
    assert not CommitLog(decision, 2).is_settled
    assert CommitLog(decision, 3).is_settled

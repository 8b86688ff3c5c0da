"""Metadata of three brokers in one thread: election, fence, forwarding, takeover, lost sessions, outages."""

import logging
from random import Random

import pytest

from tests.unit.broker.doors import DoorUnderTest, World, codes
from tidelog.broker.metadata import controller_runtime
from tidelog.broker.metadata.change_log import read_snapshot
from tidelog.controller.commands import (
    AllocateProducerIds,
    DeleteTopics,
    ProducerIdBlock,
    TopicCreated,
    TopicReference,
)
from tidelog.coordination.store import Check
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage


def same_images(world: World) -> None:
    """Every door shows what the store holds."""
    stored = ClusterImage().apply(read_snapshot(world.cluster.open("checker")).records)
    stored.check_invariants()
    for door in world.doors.values():
        if not door.dead:
            image = door.metadata.image
            image.check_invariants()
            for part in (
                "cluster_id",
                "controller_id",
                "controller_epoch",
                "brokers",
                "topics",
                "next_producer_id",
            ):
                assert getattr(image, part) == getattr(stored, part), (door.broker_id, part)


def others(world: World, door: DoorUnderTest) -> list[DoorUnderTest]:
    return [other for other in world.doors.values() if other is not door and not other.dead]


def test_three_brokers_form_a_cluster() -> None:
    world = World()
    doors = world.three()
    assert [door.started for door in doors] == [[None]] * 3
    assert world.controller is doors[0]
    for door in doors:
        image = door.metadata.image
        assert sorted(image.alive_brokers) == [1, 2, 3] and image.controller_id == 1
        assert image.cluster_id == doors[0].metadata.cluster_id
    epochs = [door.metadata.broker_epoch for door in doors]
    assert min(epochs) > 0
    same_images(world)


def test_a_command_anywhere_is_decided_by_the_controller_and_seen_when_answered() -> None:
    world = World()
    _, second, third = world.three()
    seen: list[bool] = []
    answers = second.create("a", 5)
    third.metadata.submit(
        DeleteTopics((TopicReference("nothing"),)),
        lambda results: seen.append("a" in third.metadata.image.topics),
    )
    while not answers:
        world.step()
    [[created]] = answers
    assert isinstance(created, TopicCreated) and created.partition_count == 5
    # The answer came when this broker's own image had the topic, whatever the others have.
    assert second.metadata.image.topics["a"].topic_id == created.topic_id
    world.settle()
    assert seen == [True]
    assert third.submit(AllocateProducerIds(3)) == []
    world.settle()
    same_images(world)


def test_every_commit_of_a_controller_is_fenced() -> None:
    world = World()
    world.three()[1].create("a", 3)
    world.settle()
    metadata_commits = [commit for commit in world.cluster.commits if any(w.key == "changes" for w in commit)]
    assert len(metadata_commits) >= 3
    for commit in metadata_commits:
        assert isinstance(commit[0], Check) and commit[0].key == "controller-epoch"


def test_another_takes_over_when_the_controller_dies() -> None:
    world = World()
    first, second, third = world.three()
    assert codes(_settled(world, third.create("before", 4))) == [ErrorCode.NONE]
    producer_ids = _settled(world, second.submit(AllocateProducerIds(2)))
    first.kill()
    world.settle()
    assert world.controller in (second, third)
    image = third.metadata.image
    assert sorted(image.alive_brokers) == [2, 3] and sorted(image.brokers) == [1, 2, 3]
    assert image.controller_epoch == 2 and image.controller_id == world.controller.broker_id
    assert "before" in image.topics
    # What brokers reserved before is never handed out again.
    assert producer_ids == (ProducerIdBlock(0, 1000),)
    assert _settled(world, third.submit(AllocateProducerIds(3))) == (ProducerIdBlock(1000, 1000),)
    same_images(world)


def test_a_seat_that_gets_free_during_a_look_at_it_is_taken() -> None:
    world = World()
    first, second, third = world.three()
    second.answer_turns = 20
    second.metadata._enter()
    world.step()  # it has read that the first is the controller, and will hear of that much later
    first.kill()
    third.kill()
    world.settle()
    assert world.controller is second


def test_a_change_during_a_look_at_the_log_is_followed() -> None:
    world = World()
    first, _, third = world.three()
    third.answer_turns = 200
    third.metadata._follow()
    world.step()
    first.create("a")
    while "a" not in first.metadata.image.topics:
        world.step()
    world.settle()
    same_images(world)


def _settled(world: World, answers: list) -> tuple:  # type: ignore[type-arg]
    world.advance(1_000)
    [results] = answers
    return tuple(results)


def test_a_stale_controller_with_queued_writes_is_fenced(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    first, second, _ = world.three()
    first.freeze()
    queued = [first.create(f"stale-{number}") for number in range(3)]
    # The store gives its session up without telling it, as it does for a process that is stopped.
    world.cluster._leave(first.store._session)
    world.settle()
    assert first.metadata.is_controller and not first.dead
    assert second.metadata.is_controller != world.doors[3].metadata.is_controller
    assert codes(_settled(world, second.create("new"))) == [ErrorCode.NONE]
    commits = len(world.cluster.commits)
    first.thaw()
    with caplog.at_level(logging.WARNING):
        world.settle()
    assert world.controller is not first and "no longer the controller" in caplog.text
    stale = [c for c in world.cluster.commits[commits:] if any("stale" in w.key for w in c)]
    assert all(commit[0].expected_version != 1 for commit in stale), (
        "a commit under the old epoch went through"
    )
    # What was queued went to the new controller instead, and the frozen broker lives again.
    world.advance(1_000)
    assert [codes(answers[0]) for answers in queued] == [[ErrorCode.NONE]] * 3
    assert sorted(world.doors[3].metadata.image.topics) == ["new", "stale-0", "stale-1", "stale-2"]
    assert sorted(second.metadata.image.alive_brokers) == [1, 2, 3]
    same_images(world)


def test_the_fence_alone_stops_a_controller_whose_session_lives() -> None:
    """Even when the store still takes its commits, the epoch refuses them."""
    world = World()
    first, second, _ = world.three()
    first.freeze()
    answers = first.create("stale")
    # Its place goes (as if by an administrator), its session stays.
    session = first.store._session
    value, version, _ = world.cluster._entries["controller"]
    world.cluster._entries["controller"] = (value, version, -1)
    world.cluster._sessions[-1] = first.store
    world.cluster._leave(-1)
    world.settle()
    assert session in world.cluster._sessions
    first.thaw()
    while first.metadata.is_controller:
        world.step()
    assert "stale" not in second.metadata.image.topics
    world.advance(1_000)
    assert codes(answers[0]) == [ErrorCode.NONE]
    assert world.controller is not first
    same_images(world)


def test_a_lost_session_is_a_new_incarnation() -> None:
    world = World()
    first, second, third = world.three()
    before = second.metadata.image.brokers[2]
    second.store.expire()
    world.advance(1_000)
    after = second.metadata.image.brokers[2]
    assert after.alive and after.incarnation != before.incarnation and after.epoch > before.epoch
    assert second.metadata.broker_epoch == after.epoch and world.controller is first
    assert codes(_settled(world, second.create("a"))) == [ErrorCode.NONE]
    first.store.expire()
    world.advance(1_000)
    assert world.controller in (second, third)
    assert sorted(third.metadata.image.alive_brokers) == [1, 2, 3]
    same_images(world)


def test_an_outage_of_the_store_stops_nothing_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    doors = world.three()
    assert codes(_settled(world, doors[1].create("before"))) == [ErrorCode.NONE]
    with caplog.at_level(logging.INFO):
        for door in doors:
            door.store.partition()
        patient, hasty = (
            doors[2].create("patient", timeout_ms=60_000),
            doors[0].create("hasty", timeout_ms=3_000),
        )
        world.advance(10_000)
        assert codes(hasty[0]) == [ErrorCode.REQUEST_TIMED_OUT] and not patient
        assert all("before" in door.metadata.image.topics for door in doors)
        for door in doors:
            door.store.heal()
        world.advance(5_000)
    assert codes(patient[0]) == [ErrorCode.NONE]
    assert caplog.text.count("does not answer") <= 3
    # The commit of the hasty one was under way when the store went: nobody knows, but all agree.
    same_images(world)


def test_an_outage_that_outlasts_the_sessions() -> None:
    world = World()
    doors = world.three()
    assert codes(_settled(world, doors[1].create("before"))) == [ErrorCode.NONE]
    for door in doors:
        door.store.partition()
        door.store.expire()
    world.stores_down = True
    waiting = [door.create(f"during-{door.broker_id}", timeout_ms=60_000) for door in doors]
    world.advance(5_000)
    world.stores_down = False
    for door in doors:
        door.store.heal()
    world.advance(5_000)
    assert [codes(answers[0]) for answers in waiting] == [[ErrorCode.NONE]] * 3
    assert sorted(world.controller.metadata.image.alive_brokers) == [1, 2, 3]
    same_images(world)


def test_a_broken_link_to_the_controller_is_waited_out() -> None:
    world = World()
    _, second, _ = world.three()
    world.links_down = True
    given_up, patient = second.create("a", timeout_ms=1_000), second.create("b")
    world.advance(2_000)
    assert codes(given_up[0]) == [ErrorCode.REQUEST_TIMED_OUT] and not patient
    world.links_down = False
    assert codes(_settled(world, patient)) == [ErrorCode.NONE]


def test_a_command_nobody_waits_for_any_more_is_not_carried_out() -> None:
    world = World()
    first, second, _ = world.three()
    first.store.fail_next(10_000)
    answers = second.create("late", timeout_ms=2_000)
    world.advance(5_000)
    assert codes(answers[0]) == [ErrorCode.REQUEST_TIMED_OUT]
    first.store.fail_next(-10_000)
    world.advance(5_000)
    assert codes(_settled(world, second.create("next"))) == [ErrorCode.NONE]
    assert sorted(second.metadata.image.topics) == ["next"]


def test_who_is_far_behind_reads_everything() -> None:
    world = World()
    first, second, third = world.three()
    kept = second.create("kept", 2)
    world.settle()
    assert kept
    before = third.metadata.image.topics["kept"]
    third.freeze()
    for number in range(300):
        first.create(f"t{number}") if number % 2 else first.submit(AllocateProducerIds(1))
    world.settle()
    assert third.metadata.sequence < first.metadata.sequence - 256
    third.thaw()
    world.settle()
    same_images(world)
    assert third.metadata.image.topics["kept"] is before, "what did not change stays the same object"


def test_a_large_decision_goes_in_parts() -> None:
    world = World()
    first, _, third = world.three()
    answers = third.create("large", 9_500)
    world.settle()
    assert codes(answers[0]) == [ErrorCode.NONE]
    assert len(third.metadata.image.topics["large"].partitions) == 9_500
    sizes = [len(commit) for commit in world.cluster.commits]
    assert max(sizes) <= controller_runtime.COMMIT_WRITES_MAX + 5 and sizes[-1] > 1_000
    assert first.store.get("unfinished") is None
    same_images(world)
    answers = third.submit(DeleteTopics((TopicReference("large"),)))
    world.settle()
    assert codes(answers[0]) == [ErrorCode.NONE] and not third.metadata.image.topics
    assert first.store.get("unfinished") is None and not first.store.load("partitions/")


@pytest.mark.parametrize("command", ["create", "delete"])
def test_the_next_controller_ends_what_the_last_one_began(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_runtime, "COMMIT_WRITES_MAX", 10)
    world = World()
    first, second, third = world.three()
    if command == "delete":
        third.create("large", 45)
        world.settle()
    commits = len(world.cluster.commits)
    answers = (
        third.create("large", 45)
        if command == "create"
        else third.submit(DeleteTopics((TopicReference("large"),)))
    )
    while len(world.cluster.commits) < commits + 2:
        world.step()
    assert second.store.get("unfinished") is not None
    first.kill()
    world.settle()
    assert second.store.get("unfinished") is None
    image = second.metadata.image
    if command == "create":
        assert len(image.topics["large"].partitions) == 45
        assert codes(_settled(world, answers)) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    else:
        assert "large" not in image.topics and not second.store.load("partitions/")
    same_images(world)


def test_an_id_that_is_taken_is_waited_for_and_then_refused() -> None:
    world = World()
    first, second, _ = world.three()
    impostor = DoorUnderTest(world, 2)
    world.doors[22] = impostor
    impostor.start()
    world.advance(8_000)
    assert not impostor.started
    world.advance(4_000)
    [refused] = impostor.started
    assert refused is not None and refused.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert refused.message == "broker id 2 is already registered by host:9002"
    impostor.metadata.stop()
    world.settle()
    assert first.metadata.image.brokers[2].incarnation == second.metadata.image.brokers[2].incarnation
    same_images(world)


def test_a_restarted_broker_waits_for_its_last_session_to_end() -> None:
    world = World()
    first, second, _ = world.three()
    before = first.metadata.image.brokers[2]
    second.dead = True  # killed, and the store has not noticed yet
    again = world.door(2)
    world.advance(3_000)
    assert not again.started and first.metadata.image.brokers[2] == before
    second.store.expire()
    world.settle()
    assert again.started == [None]
    after = first.metadata.image.brokers[2]
    assert after.alive and after.epoch > before.epoch


def test_a_broker_that_stops_leaves_at_once() -> None:
    world = World()
    first, second, third = world.three()
    first.metadata.stop()
    first.dead = True
    world.settle()
    assert world.controller in (second, third)
    assert sorted(third.metadata.image.alive_brokers) == [2, 3]
    answers: list[object] = []
    first.metadata.submit(AllocateProducerIds(1), answers.append)
    assert not answers


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_what_was_answered_stays(seed: int) -> None:
    """Sessions lost, stores cut off, brokers frozen, killed and back, while topics are made."""
    world = World(seed, shuffled=True)
    random = Random(seed * 7 + 1)
    world.three()
    asked: dict[str, list] = {}  # type: ignore[type-arg]
    for turn in range(120):
        door = random.choice([d for d in world.doors.values() if not d.dead])
        match random.randrange(12):
            case 0:
                door.store.expire()
            case 1:
                door.store.partition()
            case 2 | 3:
                door.store.heal()
            case 4:
                door.freeze()
            case 5 | 6:
                door.thaw()
            case 7:
                door.store.lose_answer_next()
            case 8 if random.random() < 0.3 and len(others(world, door)) == 2:
                door.kill()
            case 9:
                for dead in [d for d in world.doors.values() if d.dead]:
                    world.door(dead.broker_id)
            case 10:
                world.links_down = random.random() < 0.3
            case _:
                asked[f"t{turn}"] = door.create(f"t{turn}", random.randrange(1, 4), timeout_ms=8_000)
        for _ in range(random.randrange(40)):
            if world.queue:
                world.step()
        if random.random() < 0.3:
            world.advance(random.randrange(400))
    world.links_down = False
    for door in list(world.doors.values()):
        door.thaw()
        door.store.heal()
        if door.dead:
            world.door(door.broker_id)
    world.advance(40_000, step_ms=100)
    same_images(world)
    assert sorted(world.controller.metadata.image.alive_brokers) == [1, 2, 3]
    created = {name for name, answers in asked.items() if answers and isinstance(answers[0][0], TopicCreated)}
    assert created <= set(world.controller.metadata.image.topics)
    unanswered = [name for name, answers in asked.items() if len(answers) != 1]
    lost_with_their_broker = 40
    assert len(unanswered) <= lost_with_their_broker and all(len(answers) <= 1 for answers in asked.values())
    for door in world.doors.values():
        assert door.images == sorted(door.images), "an image went back"

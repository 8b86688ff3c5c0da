"""Rebalance: members join, leave and crash; heartbeats, session timeouts, both group protocols."""

import time
from typing import Any

from tidelog.lab.consumers import ConsumerProcess
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

PARTITIONS = 4
SESSION_MS = 3_000
HEARTBEAT_MS = 300
CLASSIC = {
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": HEARTBEAT_MS,
    "partition_assignment_strategy": "range",
}
NEWER = {"group_protocol": "consumer"}
#: a session counts from the last heartbeat, which may have been this long ago when a member dies
SESSION_SECONDS_MIN = (SESSION_MS - HEARTBEAT_MS) / 1000 - 0.3
PAUSE_SECONDS = 0.8

SCENARIO = Scenario(
    name="rebalance",
    title="Rebalance",
    minutes=6,
    learn=(
        "who joins or leaves makes the group deal out its partitions anew",
        "a member that leaves says so; one that crashes is missed only when its session times out",
        "in the older protocol everybody stops for a rebalance, in the newer one only what moves",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=PARTITIONS),),
    summary="Close consumers properly, keep the session timeout short enough to notice crashes, and "
    "prefer the newer protocol.",
)


def _start(lab: Lab, name: str, group: str, options: dict[str, Any]) -> ConsumerProcess:
    return lab.start_consumer(name, group=group, topics=["orders"], **options)


def _wait_shares(lab: Lab, members: list[ConsumerProcess], expected: list[int]) -> float:
    """Seconds until the members have so many partitions."""
    return lab.wait(
        f"{', '.join(member.name for member in members)} have {expected} partitions",
        lambda: [len(member.assignment) for member in members] == expected,
    )


def _told_since(member: ConsumerProcess, kind: str, position: int) -> list[list[int]]:
    """The partitions of every notice of this kind in a member's history from `position` on."""
    return [
        [number for _, number in told["partitions"]]
        for told in member.history[position:]
        if told["kind"] == kind
    ]


def _show_history(see: Observation, member: ConsumerProcess, position: int) -> None:
    rows = [
        (member.name, told["kind"], " ".join(str(number) for _, number in told["partitions"]) or "nothing")
        for told in member.history[position:]
        if told["kind"] in ("assigned", "revoked", "lost")
    ]
    see.table(("consumer", "notice", "partitions"), rows)


@SCENARIO.step(
    "A member joins (older protocol)",
    narration="anna has all four partitions. In the older protocol everybody gives up everything, then "
    "one of them (the group's leader) deals out anew.",
    action="start ben",
    prediction="anna loses all four partitions for a moment, then has two, as ben has",
)
def join(lab: Lab, see: Observation) -> None:
    anna = _start(lab, "anna", "billing", CLASSIC)
    _wait_shares(lab, [anna], [PARTITIONS])
    position = len(anna.history)
    ben = _start(lab, "ben", "billing", CLASSIC)
    _wait_shares(lab, [anna, ben], [2, 2])
    _show_history(see, anna, position)
    revoked = _told_since(anna, "revoked", position)
    see.figure("partitions_anna_gave_up", len(revoked[0]) if revoked else 0)
    see.check("anna gave up all four", bool(revoked) and len(revoked[0]) == PARTITIONS, revoked)
    together = sorted(anna.assignment + ben.assignment)
    see.check("the two share all four", together == [("orders", n) for n in range(PARTITIONS)], together)


@SCENARIO.step(
    "A member leaves",
    narration="A consumer that is closed tells its group: LeaveGroup.",
    action="stop ben",
    prediction="anna has all partitions again well before a session timeout of 3 s has passed",
)
def leave(lab: Lab, see: Observation) -> None:
    anna = lab.consumer_process("anna")
    lab.faults.stop_consumer("ben")
    # stop returns when ben's process has ended; the group heard of it before that
    seconds = _wait_shares(lab, [anna], [PARTITIONS])
    see.figure("seconds_after_a_leave", round(seconds, 2))
    see.say(f"{seconds:.2f} s after ben had left, anna had all partitions.")
    see.check("the partitions moved at once", seconds < SESSION_SECONDS_MIN, f"after {seconds:.2f} s")


@SCENARIO.step(
    "A member crashes",
    narration="Members send a heartbeat every 0.3 s. The coordinator waits for one for the session "
    "timeout, here 3 s (usually 45 s).",
    action="start ben again, then kill it (SIGKILL)",
    prediction="its partitions have no reader until its session is over, about 3 s",
)
def crash(lab: Lab, see: Observation) -> None:
    anna = lab.consumer_process("anna")
    ben = _start(lab, "ben", "billing", CLASSIC)
    _wait_shares(lab, [anna, ben], [2, 2])
    orphans = [number for _, number in ben.assignment]
    killed_at = time.time()
    lab.faults.kill_consumer("ben")
    lab.produce("orders", ["who reads me?"], partition=orphans[0])
    seconds = _wait_shares(lab, [anna], [PARTITIONS])
    anna.wait_records(1)
    waited = anna.records[0].at - killed_at if anna.records else -1.0
    see.figure("seconds_after_a_crash", round(seconds, 2))
    see.figure("seconds_the_record_waited", round(waited, 2))
    see.say(f"A record for ben's partition {orphans[0]} was read {waited:.1f} s after the crash.")
    see.check("the group noticed no sooner than the session timeout", seconds > SESSION_SECONDS_MIN, seconds)
    see.check("the record had to wait as long", waited > SESSION_SECONDS_MIN, waited)


@SCENARIO.step(
    "Late heartbeats",
    narration="A member that is silent for less than its session timeout keeps its place.",
    action=f"start ben again and pause it (SIGSTOP) for {PAUSE_SECONDS} s",
    prediction="nothing is dealt out anew",
)
def short_pause(lab: Lab, see: Observation) -> None:
    anna = lab.consumer_process("anna")
    ben = _start(lab, "ben", "billing", CLASSIC)
    _wait_shares(lab, [anna, ben], [2, 2])
    positions = {member.name: len(member.history) for member in (anna, ben)}
    lab.faults.pause_consumer("ben")
    time.sleep(PAUSE_SECONDS)
    lab.faults.resume_consumer("ben")
    time.sleep(PAUSE_SECONDS)
    moved = [told["kind"] for member in (anna, ben) for told in member.history[positions[member.name] :]]
    see.say(f"Notices to anna and ben meanwhile: {moved or 'none'}.")
    see.check("nobody was given or lost anything", moved == [], moved)
    see.check("both still have two", [len(anna.assignment), len(ben.assignment)] == [2, 2])


@SCENARIO.step(
    "A member that was thought dead",
    narration="Now ben is silent for longer than its session, and comes back.",
    action="pause ben until anna has everything, then let it go on",
    prediction="ben is told that it has lost its partitions, joins again, and gets two",
)
def long_pause(lab: Lab, see: Observation) -> None:
    anna, ben = lab.consumer_process("anna"), lab.consumer_process("ben")
    position = len(ben.history)
    lab.faults.pause_consumer("ben")
    seconds = _wait_shares(lab, [anna], [PARTITIONS])
    lab.faults.resume_consumer("ben")
    # ben still thinks that it has two, until its next heartbeat is refused
    ben.wait(
        lambda member: bool(_told_since(member, "lost", position) or _told_since(member, "revoked", position))
    )
    _wait_shares(lab, [anna, ben], [2, 2])
    _show_history(see, ben, position)
    see.figure("seconds_until_expelled", round(seconds, 2))
    see.check("it was expelled after its session timeout", seconds > SESSION_SECONDS_MIN, seconds)
    gone = _told_since(ben, "lost", position) + _told_since(ben, "revoked", position)
    see.check("ben was told that its partitions are gone", [len(places) for places in gone] == [2], gone)


@SCENARIO.step(
    "A member joins (newer protocol)",
    narration="In the newer protocol (KIP-848) the coordinator itself deals out, and takes away only "
    "what has to move.",
    action="start carla and dan in another group, with group.protocol=consumer",
    prediction="carla gives up two partitions and keeps the other two all the time",
)
def newer_join(lab: Lab, see: Observation) -> None:
    for name in ("anna", "ben"):
        lab.faults.stop_consumer(name)
    carla = _start(lab, "carla", "shipping", NEWER)
    _wait_shares(lab, [carla], [PARTITIONS])
    position = len(carla.history)
    dan = _start(lab, "dan", "shipping", NEWER)
    _wait_shares(lab, [carla, dan], [2, 2])
    _show_history(see, carla, position)
    revoked = _told_since(carla, "revoked", position)
    see.figure("partitions_carla_gave_up", sum(len(places) for places in revoked))
    see.check("carla gave up two, once", [len(places) for places in revoked] == [2], revoked)


@SCENARIO.step(
    "A crash (newer protocol)",
    narration="Heartbeats and sessions are there as well; how long is now the broker's setting "
    "(group.consumer.session.timeout.ms, here 3 s).",
    action="kill dan",
    prediction="carla gets its partitions after the session timeout and keeps reading its own meanwhile",
)
def newer_crash(lab: Lab, see: Observation) -> None:
    carla = lab.consumer_process("carla")
    own = carla.assignment[0][1]
    position = len(carla.history)
    lab.faults.kill_consumer("dan")
    lab.produce("orders", ["read at once"], partition=own)
    seconds = _wait_shares(lab, [carla], [PARTITIONS])
    see.figure("seconds_after_a_crash", round(seconds, 2))
    see.say(f"carla had dan's partitions {seconds:.1f} s after the crash, and read its own all the time.")
    read_at = lab.wait_value(
        "carla has read the record",
        lambda: next((record.at for record in carla.records if record.value == "read at once"), None),
    )
    given_at = min(
        (
            told["at"]
            for told in carla.history[position:]
            if told["kind"] == "assigned" and told["partitions"]
        ),
        default=0.0,
    )
    see.check("carla read its own partitions while the group waited for dan", read_at < given_at, given_at)
    see.check("carla gave up nothing", _told_since(carla, "revoked", position) == [])
    see.check("then it had all four", len(carla.assignment) == PARTITIONS, carla.assignment)

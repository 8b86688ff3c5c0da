"""What members say of themselves is bounded in bytes, in one group and in all groups of a broker."""

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from tests.unit.groups.test_groups_consumer_machine import ConsumerDesk
from tests.unit.groups.test_groups_machine import SETTINGS, Desk
from tidelog.groups.machine import GroupMachine
from tidelog.groups.member_memory import COUNTED_EVERY_MS, MemberMemory
from tidelog.model.errors import ErrorCode

MIB = 1 << 20
BOUNDED = replace(SETTINGS, members_bytes_max=8 * MIB)
LARGE = (("range", bytes(MIB)),)
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.fixture
def desk() -> Desk:
    return Desk(BOUNDED)


def errors(desk: Desk, tokens: list[int]) -> list[Any]:
    """What each was told; None for those that wait for the others to join."""
    return [desk.answers.get(token, {}).get("error_code") for token in tokens]


def test_members_of_a_group_keep_half_of_the_bound(desk: Desk) -> None:
    joins = [desk.join(requires_known_member_id=False, protocols=LARGE) for _ in range(6)]
    assert errors(desk, joins) == [None, None, None, FULL, FULL, FULL]
    small = desk.join(requires_known_member_id=False)
    assert errors(desk, [small]) == [None], "there is room for one that says little"
    assert 3 * MIB < desk.machine.held_bytes() < 4 * MIB


def test_groups_keep_the_bound_together_and_members_that_are_gone_make_room(desk: Desk) -> None:
    joins = [
        desk.join(group_id=f"g{number % 8}", requires_known_member_id=False, protocols=LARGE)
        for number in range(24)
    ]
    assert errors(desk, joins).count(FULL) == 24 - 7
    desk.pass_time(10 * 60_000)
    assert desk.machine.held_bytes() < MIB // 10, "their sessions are over"
    again = desk.join(group_id="g9", requires_known_member_id=False, protocols=LARGE)
    assert errors(desk, [again]) == [None]


def test_ids_that_were_handed_out_count(desk: Desk) -> None:
    told = [desk.join(client_id="c" * 32_000, session_timeout_ms=1_800_000) for _ in range(300)]
    kinds = errors(desk, told)
    assert kinds.count(ErrorCode.MEMBER_ID_REQUIRED) == kinds.index(FULL) < 4 * MIB // 32_000
    before = desk.machine.held_bytes()
    desk.join(desk.answers[told[0]]["member_id"])
    assert desk.machine.held_bytes() < before + 40_000, "the member takes the place of its id"


def test_a_member_that_says_what_it_said_before_is_never_refused(desk: Desk) -> None:
    (member_id,) = desk.stable(protocols=LARGE)
    while errors(desk, [desk.join(requires_known_member_id=False, protocols=LARGE)]) == [None]:
        pass
    rejoined = desk.join(member_id, protocols=LARGE)
    assert errors(desk, [rejoined]) != [FULL]
    assert errors(desk, [desk.join(member_id, protocols=(("range", bytes(3 * MIB)),))]) == [FULL]


def test_what_is_kept_is_exact_when_steps_are_taken_back(desk: Desk) -> None:
    (member_id,) = desk.stable()
    held = desk.machine.held_bytes()
    desk.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    desk.pass_time(15_000)
    assert member_id in desk.group.members and desk.machine.held_bytes() == held
    desk.refuse = None
    desk.pass_time(15_000)
    assert not desk.group.members
    assert desk.machine.held_bytes() == empty_group_bytes()


def empty_group_bytes() -> int:
    desk = Desk(BOUNDED)
    desk.join(protocol_type="")
    return desk.machine.held_bytes()


def test_subscriptions_of_consumer_groups_count() -> None:
    desk = ConsumerDesk()
    desk.machine.reconfigure(replace(SETTINGS, members_bytes_max=2 * MIB))
    names = tuple(f"{number:05d}{'n' * 200}" for number in range(1_000))
    told = [desk.enter(f"m{number}", subscribed_topic_names=names)["error_code"] for number in range(6)]
    assert told == [ErrorCode.NONE] * 4 + [FULL] * 2
    assert desk.enter("small")["error_code"] is ErrorCode.NONE
    epoch = desk.group.current_of("m0").epoch
    assert desk.beat("m0", epoch, [])["error_code"] is ErrorCode.NONE
    held = desk.machine.held_bytes()
    desk.beat("m0", -1)
    assert desk.machine.held_bytes() < held - 200_000
    desk.reload()
    assert 400_000 < desk.machine.held_bytes() < held - 200_000, "the same after a failover"


def test_machines_share_what_may_be_kept() -> None:
    machines: list[GroupMachine] = []
    memory = MemberMemory(lambda: sum(machine.held_bytes() for machine in machines))
    machines += (GroupMachine(number, BOUNDED, None, memory) for number in range(2))
    desks = [Desk(BOUNDED), Desk(BOUNDED)]
    for desk, machine in zip(desks, machines, strict=True):
        desk.machine = machine
        machine.loaded(0)
    joins = []
    for number in range(5):
        for desk in desks:
            token = desk.join(group_id=f"g{number}", requires_known_member_id=False, protocols=LARGE)
            joins += errors(desk, [token])
    assert joins.count(None) == 7


def test_the_groups_are_not_gone_through_for_every_refusal() -> None:
    counted = []
    memory = MemberMemory(lambda: counted.append(1) or 900)  # type: ignore[func-returns-value]
    assert memory.admits(900, 0, 2_000, 0)
    for now_ms in range(COUNTED_EVERY_MS):
        memory.admits(500, 0, 1_000, now_ms)
    assert len(counted) == 1
    memory.admits(500, 0, 1_000, COUNTED_EVERY_MS)
    memory.admits(500, 0, 1_000, 10)
    assert len(counted) == 3, "the clock may go back"


def test_names_of_topics_that_are_not_there_cost_no_step_each() -> None:
    """Each of a member's changes looks at what all others name, half of what a broker keeps of members."""
    desk = ConsumerDesk(replace(SETTINGS, consumer_max_size=10))
    for number in range(10):
        desk.enter(f"m{number}", subscribed_topic_names=("t", *(f"{number}-{i}" for i in range(1_000))))
    steps = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        answer = desk.beat("m0", desk.group.current_of("m0").epoch, subscribed_topic_names=("t", "u"))
    finally:
        sys.setprofile(None)
    assert answer["error_code"] is ErrorCode.NONE and set(desk.group.topics) == {"t"}
    assert steps < 5_000  # its own names and what it lets go of, of 10,000

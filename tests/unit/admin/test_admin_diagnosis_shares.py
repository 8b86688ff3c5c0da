"""What `tidelog doctor` says about share groups, on values."""

from dataclasses import replace

import pytest

from tests.unit.admin.test_admin_diagnosis import broker, healthy, partition, topic
from tidelog.admin.diagnosis import Examination, Finding, SeenShareGroup, SeenTopic, Severity, ShareLook
from tidelog.admin.diagnosis_shares import AUTO_CREATE, GROUP_ENABLE, NAME_PREFIX, share_groups

QUIET = ShareLook(delivered=100, said=100, limit=5)
BUSY = ShareLook(lag=40, acquired=20, delivered=100, said=60, limit=5)


def seen(group: SeenShareGroup, **changed: object) -> Examination:
    return healthy(share_groups=(group,), watched_seconds=6.0, **changed)


def group(members: int = 1, look: ShareLook = QUIET, **changed: object) -> SeenShareGroup:
    return replace(SeenShareGroup("invoices", "Stable", members, look), **changed)  # type: ignore[arg-type]


def letters(name: str, configs: dict[str, str]) -> SeenTopic:
    return replace(topic(name, partition(name)), configs=configs)


def only(examination: Examination, severity: Severity) -> Finding:
    (found,) = share_groups(examination)
    assert found.severity is severity, found
    assert found.next_step or severity is Severity.OK
    assert severity is Severity.OK or found.subjects == ("invoices",)
    return found


def test_without_share_groups_nothing_is_said() -> None:
    assert share_groups(healthy()) == []


@pytest.mark.parametrize(
    "well",
    [
        group(),
        group(members=0),
        group(look=BUSY),
        group(look=BUSY, later=replace(BUSY, said=61)),
        # A lock that ended long ago.
        group(look=replace(BUSY, lock_expiries=20)),
        group(look=replace(QUIET, lock_expiries=200)),
        group(look=replace(QUIET, delivered_last=9)),
        group(look=replace(QUIET, delivered=1_000, delivered_last=99)),
    ],
)
def test_a_group_that_is_well(well: SeenShareGroup) -> None:
    assert "1 share group, none behind or stuck" in only(seen(well), Severity.OK).message


def test_nobody_reads() -> None:
    waiting = ShareLook(lag=30)
    assert "no members, and 30 records wait" in only(seen(group(0, waiting)), Severity.HINT).message
    growing = group(0, waiting, later=ShareLook(lag=45))
    assert "15 more in 6 s" in only(seen(growing), Severity.WARNING).message
    only(seen(group(0, ShareLook(lag=100_000))), Severity.WARNING)


def test_locks_that_end_without_a_word() -> None:
    look = replace(BUSY, said=3, lock_expiries=80, repeated=20)
    found = only(seen(group(look=look)), Severity.WARNING)
    assert "80 records ended before anything was said" in found.message
    silent = replace(look, repeated=0)
    only(seen(group(look=silent, later=silent)), Severity.WARNING)
    only(seen(group(look=silent, later=replace(silent, said=4))), Severity.OK)
    assert "tidelog share describe invoices" in found.next_step


def test_members_that_say_nothing() -> None:
    found = only(seen(group(look=BUSY, later=BUSY)), Severity.HINT)
    assert "1 member acknowledged nothing in 6 s, while 40 records wait; members have 20" in found.message
    # Another make tells the lag alone.
    foreign = ShareLook(lag=40)
    only(seen(group(look=foreign, later=foreign)), Severity.HINT)
    only(seen(group(look=foreign, later=ShareLook(lag=39))), Severity.OK)


def test_a_group_that_is_far_behind() -> None:
    look = replace(BUSY, lag=200_000)
    assert "200000 records behind" in only(seen(group(look=look)), Severity.HINT).message


def test_many_records_that_fail() -> None:
    look = replace(QUIET, delivered_last=10)
    found = only(seen(group(look=look)), Severity.WARNING)
    assert "10 of 100 records were delivered 5 times" in found.message and "gone" in found.message
    kept = letters("dlq.invoices", {GROUP_ENABLE: "true"})
    found = only(seen(group(look=look, dead_letter_topic="dlq.invoices"), topics=(kept,)), Severity.WARNING)
    assert "gone" not in found.message


@pytest.mark.parametrize(
    ("configs", "settings", "words"),
    [
        (None, {AUTO_CREATE: "false"}, "does not exist"),
        ({GROUP_ENABLE: "false"}, {}, "is not for dead letters"),
        ({GROUP_ENABLE: "true"}, {NAME_PREFIX: "letters-"}, "does not begin with letters-"),
        (None, {AUTO_CREATE: "true"}, ""),
        ({GROUP_ENABLE: "true"}, {NAME_PREFIX: "dlq."}, ""),
        # Another make, which tells neither.
        ({}, {}, ""),
    ],
)
def test_a_topic_for_dead_letters(
    configs: dict[str, str] | None, settings: dict[str, str], words: str
) -> None:
    name = "dlq.invoices"
    topics = () if configs is None else (letters(name, configs),)
    examination = seen(
        group(dead_letter_topic=name), topics=topics, brokers=(broker(1, configs={"x": "y", **settings}),)
    )
    if words:
        assert words in only(examination, Severity.PROBLEM).message
    else:
        only(examination, Severity.OK)


def test_dead_letters_that_find_no_place() -> None:
    there = letters("dlq.i", {GROUP_ENABLE: "true"})
    lost = group(look=replace(QUIET, given_up=4), dead_letter_topic="dlq.i")
    assert "4 dead letters" in only(seen(lost, topics=(there,)), Severity.PROBLEM).message
    waiting = replace(QUIET, archiving=3)
    stuck = group(look=waiting, later=waiting, dead_letter_topic="dlq.i")
    found = only(seen(stuck, topics=(there,)), Severity.WARNING)
    assert "3 dead letters of share group invoices wait to be written to dlq.i" in found.message
    only(seen(group(look=waiting, dead_letter_topic="dlq.i"), topics=(there,)), Severity.OK)

"""Ways to spoil a clean history, one for each checker: `PLANTS[name](history)` is a copy with that anomaly.

A checker that stays silent on its plant is broken, so the unit tests and every chaos run try them all. A
plant needs something to spoil; `Unplantable` says that the history has none of it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tests.chaos.history import COMMITTED, NO_OFFSET, UNKNOWN, Assigned, History, Place, Poll, Send
from tests.chaos.history_checks import Analysis

T = TypeVar("T")


class Unplantable(Exception):
    """The history has nothing of the kind that this plant spoils."""


def _middle(items: list[T]) -> T:
    if not items:
        raise Unplantable
    return items[len(items) // 2]


def _changed(
    history: History,
    change: Callable[[Poll], tuple[tuple[int, str], ...]],
    *,
    only: Callable[[Poll], bool] = lambda poll: True,
) -> History:
    """The history with the records of some polls changed."""
    reads: list[Poll | Assigned] = [
        event._replace(records=change(event)) if isinstance(event, Poll) and only(event) else event
        for event in history.reads
    ]
    return replace(history, reads=reads)


def _without(history: History, values: set[str], only: Callable[[Poll], bool] = lambda poll: True) -> History:
    return _changed(
        history, lambda poll: tuple(record for record in poll.records if record[1] not in values), only=only
    )


def _promised(history: History) -> list[Send]:
    """Promised sends of idempotent producers outside transactions, read, not the last of a partition."""
    analysis = Analysis(history)
    ends = {place: max(log) for place, log in analysis.final_logs.items() if log}
    return [
        send
        for send in analysis.promised()
        if send.idempotent
        and not send.transaction
        and send.value in analysis.final_values
        and send.offset < ends[send.place]
    ]


def _final_of(history: History, place: Place) -> Poll:
    return next(poll for poll in history.polls if poll.final and poll.committed and poll.place == place)


def _append(history: History, place: Place, offset: int, value: str) -> History:
    """One record more in the last reading of a partition."""
    last = [poll for poll in history.polls if poll.final and poll.committed and poll.place == place][-1]
    return _changed(history, lambda poll: (*poll.records, (offset, value)), only=lambda poll: poll is last)


def _end(history: History, place: Place) -> int:
    return max(offset for poll in history.polls if poll.place == place for offset, _ in poll.records) + 1


def lose_write(history: History) -> History:
    return _without(history, {_middle(_promised(history)).value})


def lose_end(history: History) -> History:
    send = _middle(_promised(history))
    more = send._replace(number=1 << 40, value="planted", offset=_end(history, send.place))
    return replace(history, sends=[*history.sends, more])


def vanish(history: History) -> History:
    final = Analysis(history).final_values
    seen = [value for poll in history.polls if not poll.final for _, value in poll.records if value in final]
    return _without(history, {_middle(seen)}, lambda poll: poll.final)


def duplicate(history: History) -> History:
    send = _middle(_promised(history))
    return _append(history, send.place, _end(history, send.place), send.value)


def contradict(history: History) -> History:
    """One reader got another value at an offset."""
    place = _middle(_promised(history)).place
    poll = _final_of(history, place)
    (offset, _), *others = poll.records
    spoiled = ((offset, "planted"), *others)
    return _changed(history, lambda _: spoiled, only=lambda each: each is poll)


def show_aborted(history: History) -> History:
    analysis = Analysis(history)
    aborted = [send for send in history.sends if analysis.outcome(send) == "aborted"]
    send = _middle([send for send in aborted if send.offset != NO_OFFSET])
    return _append(history, send.place, send.offset, send.value)


def show_early(history: History) -> History:
    """A reader got a record of a transaction before the commit."""
    tags = {each.tag: each for each in history.transactions if each.outcome == COMMITTED}
    by_value = Analysis(history).send_by_value
    found = [
        (poll, tags[by_value[value].transaction])
        for poll in history.polls
        if poll.committed
        for _, value in poll.records
        if value in by_value and by_value[value].transaction in tags
    ]
    poll, transaction = _middle(found)
    reads: list[Poll | Assigned] = [
        event._replace(at=transaction.commit_begun - 0.001) if event is poll else event
        for event in history.reads
    ]
    return replace(history, reads=reads)


def fracture(history: History) -> History:
    members: dict[str, list[Send]] = defaultdict(list)
    final = Analysis(history).final_values
    for send in history.sends:
        if send.transaction and send.value in final:
            members[send.transaction].append(send)
    return _without(history, {_middle([s for s in members.values() if len(s) > 1])[0].value})


def _run_records(history: History) -> list[tuple[Poll, int]]:
    """Places inside polls of more than two records."""
    return [
        (poll, len(poll.records) // 2) for poll in history.polls if not poll.final and len(poll.records) > 2
    ]


def skip(history: History) -> History:
    poll, place = _middle(_run_records(history))
    return _changed(
        history,
        lambda each: each.records[:place] + each.records[place + 1 :],
        only=lambda each: each is poll,
    )


def go_back(history: History) -> History:
    poll, place = _middle(_run_records(history))
    return _changed(
        history,
        lambda each: (*each.records[: place + 1], each.records[place - 1], *each.records[place + 1 :]),
        only=lambda each: each is poll,
    )


def _neighbours(history: History) -> tuple[Send, Send]:
    """Two successive sends of one producer to one partition."""
    last: dict[tuple[str, Place], Send] = {}
    found = []
    for send in sorted(_promised(history), key=lambda send: send.number):
        if (before := last.get((send.producer, send.place))) is not None:
            found.append((before, send))
        last[send.producer, send.place] = send
    return _middle(found)


def swap_acknowledgements(history: History) -> History:
    first, second = _neighbours(history)
    swapped = {first.value: second.offset, second.value: first.offset}
    return replace(
        history,
        sends=[
            send._replace(offset=swapped[send.value]) if send.value in swapped else send
            for send in history.sends
        ],
    )


def swap_records(history: History) -> History:
    """Two records of one producer stand in the wrong order, and no acknowledgement says so."""
    first, second = _neighbours(history)
    other = {first.value: second.value, second.value: first.value}
    spoiled = _changed(
        history, lambda poll: tuple((offset, other.get(value, value)) for offset, value in poll.records)
    )
    return replace(
        spoiled,
        sends=[
            send._replace(outcome=UNKNOWN, offset=NO_OFFSET) if send.value in other else send
            for send in history.sends
        ],
    )


def invent(history: History) -> History:
    place = _middle(_promised(history)).place
    return _append(history, place, _end(history, place), "planted")


def skip_for_group(history: History) -> History:
    group, topic = _middle(history.follows)
    value = _middle([send for send in _promised(history) if send.topic == topic]).value
    return _without(history, {value}, lambda poll: poll.group == group)


def process_twice(history: History) -> History:
    """Another visible record says that it was made from the same source."""
    target = _middle(history.copies).target_topic
    final = Analysis(history).final_values
    send = _middle([send for send in history.sends if send.topic == target and send.value in final])
    again = send._replace(value="planted", number=send.number + (1 << 40), outcome=UNKNOWN, offset=NO_OFFSET)
    spoiled = _append(history, send.place, _end(history, send.place), again.value)
    return replace(spoiled, sends=[*history.sends, again])


PLANTS: dict[str, Callable[[History], History]] = {
    "lost write": lose_write,
    "unseen": lose_end,
    "vanished": vanish,
    "duplicate": duplicate,
    "inconsistent offsets": contradict,
    "aborted read": show_aborted,
    "precommitted read": show_early,
    "fractured transaction": fracture,
    "poll skip": skip,
    "non-monotonic poll": go_back,
    "non-monotonic send": swap_acknowledgements,
    "out of order": swap_records,
    "invented": invent,
    "group skip": skip_for_group,
    "processed wrongly": process_twice,
}
"""By the name of the checker that must notice it."""


def unnoticed(history: History, checkers: dict[str, Callable[[Analysis], list[str]]]) -> dict[str, list[str]]:
    """The plants that their checker did not notice, and those that found nothing to spoil."""
    found: dict[str, list[str]] = {"unnoticed": [], "unplantable": []}
    for name, plant in PLANTS.items():
        try:
            spoiled = plant(history)
        except Unplantable:
            found["unplantable"].append(name)
            continue
        if not checkers[name](Analysis(spoiled)):
            found["unnoticed"].append(name)
    return found

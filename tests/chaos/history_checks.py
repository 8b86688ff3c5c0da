"""Anomalies in a history, in the manner of Jepsen's Kafka workload: pure functions from history to findings.

    found = check(history)          # {"lost write": ["orders-3: …", …], …}; empty when every promise held

`CHECKERS` names them all. What they promise to catch, and what they let pass because Kafka allows it:

- A send without a known outcome may be in the log or not, but never twice and never out of order if its
  producer is idempotent. A send that failed for certain is never in the log.
- A consumer may go back, or on from somewhere else, when its partitions were assigned anew; not otherwise.
- Offsets may have holes (markers, aborted records). A skip is a hole where others saw a record.
- acks=1 promises nothing when the leader dies, and a producer that is not idempotent may write twice.
- A transaction without a known outcome is visible as a whole or not at all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from tests.chaos.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    FAILED,
    NO_OFFSET,
    Assigned,
    History,
    Place,
    Poll,
    Send,
)

Findings = list[str]
Log = dict[int, set[str]]
"""Values by offset."""


class Analysis:
    """What the checkers need of a history, worked out once and only when asked for."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def send_by_value(self) -> dict[str, Send]:
        return {send.value: send for send in self.history.sends}

    @cached_property
    def transaction_outcomes(self) -> dict[str, str]:
        return {transaction.tag: transaction.outcome for transaction in self.history.transactions}

    def outcome(self, send: Send) -> str:
        """What became of a send, its transaction considered."""
        if not send.transaction:
            return send.outcome
        outcome = self.transaction_outcomes.get(send.transaction, "unknown")
        if outcome == COMMITTED:
            return send.outcome
        return outcome

    def promised(self) -> Iterator[Send]:
        """The sends that must be readable for ever."""
        return (
            send for send in self.history.sends if send.acks == "all" and self.outcome(send) == ACKNOWLEDGED
        )

    @cached_property
    def logs(self) -> dict[Place, Log]:
        """What anybody saw, by partition and offset."""
        return _logs(self.history.polls)

    @cached_property
    def committed_logs(self) -> dict[Place, Log]:
        return _logs(poll for poll in self.history.polls if poll.committed)

    @cached_property
    def uncommitted_logs(self) -> dict[Place, Log]:
        return _logs(poll for poll in self.history.polls if not poll.committed)

    @cached_property
    def final_logs(self) -> dict[Place, Log]:
        return _logs(poll for poll in self.history.polls if poll.final and poll.committed)

    @cached_property
    def places_by_value(self) -> dict[str, set[tuple[Place, int]]]:
        found: dict[str, set[tuple[Place, int]]] = defaultdict(set)
        for place, log in self.logs.items():
            for offset, values in log.items():
                for value in values:
                    found[value].add((place, offset))
        return found

    @cached_property
    def committed_values(self) -> set[str]:
        return {value for log in self.committed_logs.values() for values in log.values() for value in values}

    @cached_property
    def final_values(self) -> set[str]:
        return {value for log in self.final_logs.values() for values in log.values() for value in values}

    def runs(self) -> Iterator[tuple[str, bool, Place, list[tuple[int, str]]]]:
        """What a consumer saw of a partition from one assignment to the next."""
        open_runs: dict[tuple[str, Place], tuple[bool, list[tuple[int, str]]]] = {}
        for event in self.history.reads:
            if isinstance(event, Assigned):
                for key in [key for key in open_runs if key[0] == event.consumer]:
                    committed, records = open_runs.pop(key)
                    yield (*_turned(key, committed), records)
            else:
                run = open_runs.setdefault((event.consumer, event.place), (event.committed, []))
                run[1].extend(event.records)
        for key, (committed, records) in open_runs.items():
            yield (*_turned(key, committed), records)


def _turned(key: tuple[str, Place], committed: bool) -> tuple[str, bool, Place]:
    return key[0], committed, key[1]


def _logs(polls: Iterable[Poll]) -> dict[Place, Log]:
    found: dict[Place, Log] = defaultdict(dict)
    for poll in polls:
        log = found[poll.place]
        for offset, value in poll.records:
            log.setdefault(offset, set()).add(value)
    return found


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _said(send: Send) -> str:
    return f"{_name(send.place)}: {send.value} at {send.offset}"


def _never_read(analysis: Analysis) -> Iterator[tuple[Send, bool]]:
    """Promised sends that no reader of committed data saw, and whether something behind them was seen."""
    highest = {place: max(log, default=NO_OFFSET) for place, log in analysis.committed_logs.items()}
    for send in analysis.promised():
        if send.value not in analysis.committed_values:
            yield send, send.offset < highest.get(send.place, NO_OFFSET)


def lost_writes(analysis: Analysis) -> Findings:
    """Acknowledged, never read, though something behind it was."""
    return [_said(send) for send, passed in _never_read(analysis) if passed]


def unseen(analysis: Analysis) -> Findings:
    """Acknowledged, never read, and nothing behind it either: the end of the log is missing."""
    return [_said(send) for send, passed in _never_read(analysis) if not passed]


def vanished(analysis: Analysis) -> Findings:
    """Shown to a reader once, and not there in the end for readers of its kind."""
    found = []
    for committed, logs in ((True, analysis.committed_logs), (False, analysis.uncommitted_logs)):
        finals = _logs(p for p in analysis.history.polls if p.final and p.committed == committed)
        for place, log in logs.items():
            if place not in finals:
                continue
            kept = finals[place]
            for offset, values in log.items():
                if gone := values - kept.get(offset, set()):
                    found.append(f"{_name(place)}: {sorted(gone)} was seen at {offset}")
    return found


def duplicates(analysis: Analysis) -> Findings:
    """One value at two offsets."""
    found = []
    for value, places in analysis.places_by_value.items():
        send = analysis.send_by_value.get(value)
        if len(places) > 1 and (send is None or send.idempotent):
            found.append(f"{value} at {sorted(places)}")
    return found


def inconsistent_offsets(analysis: Analysis) -> Findings:
    """Two values at one offset, by what was read and by what acknowledgements said."""
    found = []
    said: dict[tuple[Place, int], set[str]] = defaultdict(set)
    for send in analysis.history.sends:
        if send.outcome == ACKNOWLEDGED and send.acks == "all" and send.offset != NO_OFFSET:
            said[send.place, send.offset].add(send.value)
    for place, log in analysis.logs.items():
        for offset, values in log.items():
            said[place, offset] |= values
    for (place, offset), values in said.items():
        if len(values) > 1:
            found.append(f"{_name(place)}: {sorted(values)} at {offset}")
    return found


def aborted_reads(analysis: Analysis) -> Findings:
    """G1a: a record of an aborted transaction under read_committed, or of a send that failed for certain."""
    found = []
    for send in analysis.history.sends:
        if send.outcome == FAILED and send.value in analysis.places_by_value:
            found.append(f"{_said(send)} failed and was read")
        elif analysis.outcome(send) == ABORTED and send.value in analysis.committed_values:
            found.append(f"{_said(send)} of the aborted {send.transaction} was read")
    return found


def precommitted_reads(analysis: Analysis) -> Findings:
    """Under read_committed, a record was read before its producer had asked for the commit."""
    asked = {transaction.tag: transaction.commit_begun for transaction in analysis.history.transactions}
    found = []
    for poll in analysis.history.polls:
        if not poll.committed:
            continue
        for offset, value in poll.records:
            send = analysis.send_by_value.get(value)
            if send is not None and send.transaction and poll.at < asked.get(send.transaction, poll.at):
                found.append(f"{_name(poll.place)}: {value} at {offset} read by {poll.consumer} too early")
    return found


def fractured_transactions(analysis: Analysis) -> Findings:
    """Some acknowledged records of one transaction are visible in the end and others are not."""
    members: dict[str, list[Send]] = defaultdict(list)
    for send in analysis.history.sends:
        if send.transaction and send.outcome == ACKNOWLEDGED:
            members[send.transaction].append(send)
    found = []
    for tag, sends in members.items():
        visible = sum(send.value in analysis.final_values for send in sends)
        if 0 < visible < len(sends):
            found.append(f"{tag}: {visible} of {len(sends)} records are visible")
    return found


def poll_skips(analysis: Analysis) -> Findings:
    """A consumer passed over a record that others saw, without a new assignment in between."""
    found = []
    sorted_offsets = {
        committed: {place: sorted(log) for place, log in logs.items()}
        for committed, logs in ((True, analysis.committed_logs), (False, analysis.logs))
    }
    ranks = {
        committed: {place: {offset: n for n, offset in enumerate(o)} for place, o in by_place.items()}
        for committed, by_place in sorted_offsets.items()
    }
    for consumer, committed, place, records in analysis.runs():
        rank, offsets = ranks[committed][place], sorted_offsets[committed][place]
        for (before, _), (after, _) in pairwise(records):
            if rank[after] > rank[before] + 1:
                skipped = offsets[rank[before] + 1 : rank[after]]
                found.append(f"{consumer} passed over {_name(place)} {skipped[:5]} ({len(skipped)} records)")
    return found


def nonmonotonic_polls(analysis: Analysis) -> Findings:
    """A consumer went back without a new assignment."""
    return [
        f"{consumer} read {_name(place)} at {before}, then at {after}"
        for consumer, _, place, records in analysis.runs()
        for (before, _), (after, _) in pairwise(records)
        if after <= before
    ]


def nonmonotonic_sends(analysis: Analysis) -> Findings:
    """A producer's later record was acknowledged at an earlier offset."""
    found = []
    for sends in _by_producer(analysis.history.sends):
        told = [send for send in sends if send.outcome == ACKNOWLEDGED and send.offset != NO_OFFSET]
        for before, after in pairwise(sorted(told, key=lambda send: send.number)):
            if after.offset <= before.offset:
                found.append(f"{_said(before)}, then {after.value} at {after.offset}")
    return found


def out_of_order(analysis: Analysis) -> Findings:
    """In the log, a producer's records are not in the order in which it sent them."""
    found = []
    for place, log in analysis.logs.items():
        last: dict[str, Send] = {}
        for offset in sorted(log):
            for value in sorted(log[offset]):
                send = analysis.send_by_value.get(value)
                if send is None or not send.idempotent:
                    continue
                before = last.get(send.producer)
                if before is not None and send.number < before.number:
                    found.append(f"{_name(place)}: {send.value} at {offset} stands behind {before.value}")
                last[send.producer] = send
    return found


def _by_producer(sends: list[Send]) -> Iterable[list[Send]]:
    found: dict[tuple[str, Place], list[Send]] = defaultdict(list)
    for send in sends:
        if send.idempotent and send.acks == "all":
            found[send.producer, send.place].append(send)
    return found.values()


def invented(analysis: Analysis) -> Findings:
    """A record that nobody sent, or that was sent elsewhere."""
    found = []
    for value, places in analysis.places_by_value.items():
        send = analysis.send_by_value.get(value)
        for place, offset in sorted(places):
            if send is None or send.place != place:
                found.append(f"{_name(place)}: {value} at {offset} was not sent there")
    return found


def group_skips(analysis: Analysis) -> Findings:
    """A record that no member of a group ever got, though the group followed the topic to its end."""
    got: dict[str, set[str]] = defaultdict(set)
    for poll in analysis.history.polls:
        if poll.group:
            got[poll.group].update(value for _, value in poll.records)
    return [
        f"{group} never got {_name(place)}: {sorted(values)} at {offset}"
        for group, topic in analysis.history.follows
        for place, log in analysis.final_logs.items()
        if place[0] == topic
        for offset, values in log.items()
        if not values & got[group]
    ]


def processed_wrongly(analysis: Analysis) -> Findings:
    """A record that was processed twice or not at all by a read-process-write pipe."""
    found = []
    for source_topic, target_topic in analysis.history.copies:
        counts: dict[str, int] = defaultdict(int)
        wanted: set[str] = set()
        for (topic, _), log in analysis.final_logs.items():
            for values in log.values():
                if topic == source_topic:
                    wanted |= values
                elif topic == target_topic:
                    for value in values & analysis.send_by_value.keys():
                        counts[analysis.send_by_value[value].source] += 1
        found += [f"{value} was processed {count} times" for value, count in counts.items() if count > 1]
        found += [f"{value} was not processed" for value in sorted(wanted - counts.keys())]
    return found


CHECKERS: dict[str, Callable[[Analysis], Findings]] = {
    "lost write": lost_writes,
    "unseen": unseen,
    "vanished": vanished,
    "duplicate": duplicates,
    "inconsistent offsets": inconsistent_offsets,
    "aborted read": aborted_reads,
    "precommitted read": precommitted_reads,
    "fractured transaction": fractured_transactions,
    "poll skip": poll_skips,
    "non-monotonic poll": nonmonotonic_polls,
    "non-monotonic send": nonmonotonic_sends,
    "out of order": out_of_order,
    "invented": invented,
    "group skip": group_skips,
    "processed wrongly": processed_wrongly,
}


def check(history: History) -> dict[str, Findings]:
    """Every anomaly by its name; empty when there is none."""
    analysis = Analysis(history)
    return {name: found for name, checker in CHECKERS.items() if (found := checker(analysis))}

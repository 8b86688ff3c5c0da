"""What `tidelog doctor` asks about share groups: members, lag, settings of dead letters, and what is in
flight, as far as the brokers are ours.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from tidelog.admin.broker_links import BrokerLinks
from tidelog.admin.configs import ConfigResource
from tidelog.admin.diagnosis import (
    SETTING_OF_TIDELOG,
    Examination,
    SeenBroker,
    SeenGroup,
    SeenShareGroup,
    ShareLook,
)
from tidelog.admin.groups import describe, list_rows
from tidelog.admin.share_groups import offsets_rows, starts_of
from tidelog.admin.shares_in_flight import SharesInFlight, ask_leader
from tidelog.client.api_keys import DESCRIBE_CONFIGS, DESCRIBE_SHARE_GROUP_OFFSETS
from tidelog.client.faults import Refusal

GROUPS_PER_REQUEST = 100
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
#: what members say that settles a record, or gives it back
_SAID = ("accept", "release", "reject")


class ShareQuestions:
    """Asks the coordinators of share groups, and the leaders; groups that wait are looked at twice."""

    def __init__(self, brokers: BrokerLinks, seen: Iterable[SeenBroker]) -> None:
        self._brokers = brokers
        self._ours = [
            broker.id
            for broker in seen
            if broker.id in brokers.links and SETTING_OF_TIDELOG in broker.configs
        ]

    def groups(self, groups: Iterable[SeenGroup], watch_seconds: float) -> tuple[SeenShareGroup, ...]:
        """Every share group; those with something to watch with a second look after so many seconds."""
        ids = [group.id for group in groups if group.kind == "share"]
        if not ids:
            return ()
        places = self._coordinators(set(ids))
        states = self._described(places)
        topics = self._dead_letter_topics(ids)
        first = self._looks(places)
        found = [
            SeenShareGroup(name, *states[name], first.get(name, ShareLook()), topics.get(name))
            for name in ids
            if name in states
        ]
        if watch_seconds and any(group.look.waits for group in found):
            time.sleep(watch_seconds)
            second = self._looks(places)
            found = [
                replace(group, later=second.get(group.id)) if group.look.waits else group for group in found
            ]
        return tuple(found)

    def _coordinators(self, wanted: set[str]) -> list[tuple[int, list[str]]]:
        """Portions of groups, each with the broker to ask: the one that lists them."""
        found = []
        for broker in self._brokers.links:
            rows = self._brokers.attempt(broker, "groups", list_rows) or ()
            ids = [str(row.group_id) for row in rows if str(row.group_id) in wanted]
            found += [
                (broker, ids[start : start + GROUPS_PER_REQUEST])
                for start in range(0, len(ids), GROUPS_PER_REQUEST)
            ]
        return found

    def _described(self, places: Iterable[tuple[int, list[str]]]) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        for broker, ids in places:
            question = partial(describe, kind="share", ids=ids)
            for row in self._brokers.attempt(broker, "share groups", question) or ():
                if self._brokers.allowed(row.error_code, f"group {row.group_id}"):
                    found[str(row.group_id)] = str(row.group_state), len(row.members)
        return found

    def _dead_letter_topics(self, ids: list[str]) -> dict[str, str]:
        """The topic for dead letters of each group that has one."""
        found: dict[str, str] = {}
        for broker in list(self._brokers.links)[:1]:
            for start in range(0, len(ids), GROUPS_PER_REQUEST):
                resources = [
                    {
                        "resource_type": int(ConfigResource.GROUP),
                        "resource_name": name,
                        "configuration_keys": (DEAD_LETTER_TOPIC,),
                    }
                    for name in ids[start : start + GROUPS_PER_REQUEST]
                ]
                what = "settings of groups"
                fields = {"resources": resources}
                answer = self._brokers.ask(broker, DESCRIBE_CONFIGS, fields, what, lowest=1, highest=4)
                for row in () if answer is None else answer.results:
                    if self._brokers.allowed(row.error_code, what):
                        found |= {str(row.resource_name): entry.value for entry in row.configs if entry.value}
        return found

    # Looks

    def _looks(self, places: Iterable[tuple[int, list[str]]]) -> dict[str, ShareLook]:
        looks: dict[str, ShareLook] = {}
        for broker, ids in places:
            if self._brokers.links[broker].offers(DESCRIBE_SHARE_GROUP_OFFSETS) is None:
                continue
            for row in (
                self._brokers.attempt(broker, "share groups", partial(offsets_rows, group_ids=ids)) or ()
            ):
                looks[str(row.group_id)] = self._look(row)
        flight = self._in_flight()
        for found in flight.partitions.values():
            look = looks.get(found.group)
            if look is not None:
                repeated = sum(records for count, records in found.deliveries.items() if count > 1)
                looks[found.group] = replace(
                    look,
                    acquired=look.acquired + found.acquired,
                    repeated=look.repeated + repeated,
                    archiving=look.archiving + found.archiving,
                    limit=found.delivery_count_limit,
                )
        for name, counts in flight.groups.items():
            look = looks.get(name)
            if look is not None:
                last = sum(n for count, n in counts.deliveries.items() if look.limit and count >= look.limit)
                looks[name] = replace(
                    look,
                    delivered=counts.deliveries.get(1, 0),
                    delivered_last=last,
                    said=sum(counts.acknowledgements.get(kind, 0) for kind in _SAID),
                    lock_expiries=counts.lock_expiries,
                    given_up=counts.dead_letters_given_up,
                )
        return looks

    def _look(self, row: Any) -> ShareLook:
        try:
            starts = starts_of(row)
        except Refusal as refusal:
            self._brokers.refused(refusal)
            return ShareLook()
        return ShareLook(sum(lag or 0 for _, lag in starts.values()))

    def _in_flight(self) -> SharesInFlight:
        found = SharesInFlight()
        for broker in self._ours:
            question = partial(ask_leader, group_id=None)
            told = self._brokers.attempt(broker, "share groups in flight", question)
            if told is not None:
                found.adopt(told)
        return found


def with_share_groups(seen: Examination, brokers: BrokerLinks, watch_seconds: float) -> Examination:
    """The same examination with its share groups."""
    questions = ShareQuestions(brokers, seen.brokers)
    found = questions.groups(seen.groups, watch_seconds)
    if not any(group.later is not None for group in found):
        return replace(seen, share_groups=found)
    seconds = max(seen.watched_seconds, watch_seconds)
    now_ms = time.time_ns() // 1_000_000
    return replace(seen, share_groups=found, watched_seconds=seconds, now_ms=now_ms)

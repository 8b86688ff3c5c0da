"""Carries a session out on a system and writes down what it answered.

A transcript is a list of rows, one per step in the order of the session: the step's label, and the answer as
plain data, or what happened instead (`{"closed": …}`, `{"timeout": …}`, `{"unanswered": …}`).
"""

import time
from typing import Any

from oracle.session import Json, Session, Step
from oracle.systems import System
from oracle.values import at_path, labels_in, plain, resolve
from tidelog.client.faults import ClientFault
from tidelog.client.link import Link
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS

BY_NAME = {api.name: api for api in APIS.values()}
UNTIL_SECONDS_MAX = 10.0
UNTIL_PAUSE_SECONDS = 0.02
#: what a request that parks needs to be there before the next one, on another connection
LATER_PAUSE_SECONDS = 0.03
#: the coordinator is not there yet: asked again, as any client does
RETRIED = {14, 15, 16, 51}
RETRY_SECONDS_MAX = 5.0

_GROUP, _TRANSACTION = 0, 1
#: what a coordinator serves: its kind, and the fields that name the group or the transactional id
COORDINATED = {
    **dict.fromkeys(
        ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetDelete", "OffsetFetch",
         "TxnOffsetCommit", "ConsumerGroupHeartbeat"),
        (_GROUP, ("group_id", "groups")),
    ),
    "DescribeGroups": (_GROUP, ("groups",)),
    "ConsumerGroupDescribe": (_GROUP, ("group_ids",)),
    "DeleteGroups": (_GROUP, ("groups_names",)),
    **dict.fromkeys(
        ("InitProducerId", "AddOffsetsToTxn", "EndTxn", "AddPartitionsToTxn"),
        (_TRANSACTION, ("transactional_id", "v3_and_below_transactional_id", "transactions")),
    ),
    "DescribeTransactions": (_TRANSACTION, ("transactional_ids",)),
}  # fmt: skip

SLOW_SECONDS = 4.0
#: steps that took long, in words
SLOW: list[str] = []

Transcript = list[tuple[str, Json]]


class Runner:
    """One session on one system."""

    def __init__(self, system: System, prefix: str, until_seconds: float = UNTIL_SECONDS_MAX) -> None:
        self.system = system
        self.prefix = prefix
        #: how long steps that wait for something wait at most
        self.until_seconds = until_seconds
        self._links: dict[tuple[str, int], Link] = {}
        self._answers: dict[str, Json] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        #: steps whose answer is still to come, with their tickets, in the order of sending
        self._due: dict[tuple[str, int], list[tuple[Step, int]]] = {}

    def run(self, session: Session) -> Transcript:
        """Carry out every step."""
        try:
            for step in session.steps:
                started = time.monotonic()
                self._do(step)
                seconds = time.monotonic() - started
                if seconds > SLOW_SECONDS:
                    SLOW.append(f"{self.system.name} took {seconds:.0f} s for {step}")
            for place in list(self._due):
                self._collect(place)
        finally:
            for link in self._links.values():
                link.close()
        return [(step.label, self._answers[step.label]) for step in session.steps if not step.cleanup]

    def _do(self, step: Step) -> None:
        for label in labels_in(step.fields):
            if label not in self._answers:
                self._collect_label(label)
        place = (step.connection, self._broker_of(step))
        if step.later:
            self._send(step, place)
            time.sleep(LATER_PAUSE_SECONDS)
            return
        self._collect(place)
        answer = self._ask(step, place)
        if step.until is not None:
            deadline = time.monotonic() + self.until_seconds
            while not holds(answer, step.until) and time.monotonic() < deadline:
                time.sleep(UNTIL_PAUSE_SECONDS)
                answer = self._ask(step, place)
        else:
            deadline = time.monotonic() + RETRY_SECONDS_MAX
            while errors_of(answer) & RETRIED and time.monotonic() < deadline:
                time.sleep(UNTIL_PAUSE_SECONDS)
                answer = self._ask(step, place)
        self._answers[step.label] = answer
        if step.settle:
            time.sleep(self.system.settle_seconds)

    def _broker_of(self, step: Step) -> int:
        """Which broker serves a step: the first leads every partition, coordinators are anywhere."""
        route = COORDINATED.get(step.api)
        if route is None or len(self.system.ports) == 1:
            return 1
        kind, fields = route
        key = next((found for name in fields if (found := _first(step.fields.get(name)))), None)
        key = resolve(key, self.prefix, self._answers)
        if not isinstance(key, str) or not key:
            return 1
        if (kind, key) not in self._coordinators:
            asked = Step("route", "FindCoordinator", 3, {"key": key, "key_type": kind})
            deadline = time.monotonic() + UNTIL_SECONDS_MAX
            while True:
                self._send(asked, ("route", 1))
                self._collect(("route", 1))
                answer = self._answers.pop("route")
                if answer.get("error_code") == 0 or time.monotonic() > deadline:
                    break
                time.sleep(UNTIL_PAUSE_SECONDS)
            self._coordinators[kind, key] = answer.get("node_id", 1)
        return self._coordinators[kind, key]

    def _ask(self, step: Step, place: tuple[str, int]) -> Json:
        self._send(step, place)
        self._collect(place)
        return self._answers[step.label]

    def _send(self, step: Step, place: tuple[str, int]) -> None:
        api = BY_NAME[step.api]
        fields = resolve(step.fields, self.prefix, self._answers)
        body = messages.encode_request(api, step.version, fields)
        try:
            link = self._link(place)
            if step.api == "Produce" and fields.get("acks") == 0:
                link.send_unanswered(api.key, step.version, body)
                self._answers[step.label] = {"unanswered": True}
            else:
                self._due.setdefault(place, []).append((step, link.send(api.key, step.version, body)))
        except ClientFault as fault:
            self._answers[step.label] = _ending(fault)

    def _link(self, place: tuple[str, int]) -> Link:
        if place not in self._links or self._links[place].closed:
            host, port, settings = self.system.client(*place)
            self._links[place] = Link.open(host, port, settings)
        return self._links[place]

    def _collect_label(self, label: str) -> None:
        for place, due in self._due.items():
            if any(step.label == label for step, _ in due):
                self._collect(place)
                return

    def _collect(self, place: tuple[str, int]) -> None:
        """Take every answer that is due on a connection."""
        for step, ticket in self._due.pop(place, ()):
            try:
                body = self._links[place].receive(ticket)
                answer = messages.decode_response(BY_NAME[step.api], step.version, body)
                self._answers[step.label] = plain(answer)
            except ClientFault as fault:
                self._answers[step.label] = _ending(fault)
            except messages_fault() as fault:
                self._answers[step.label] = {"unreadable": str(fault)}


def _first(value: Json) -> Json:
    """The name in a field that has one, or a list of them."""
    if isinstance(value, list):
        return _first(value[0]) if value else None
    if isinstance(value, dict) and "$name" not in value:
        return value.get("group_id") or value.get("transactional_id")
    return value


def messages_fault() -> type[Exception]:
    """What decoding raises for bytes that do not follow the schema."""
    from tidelog.protocol.primitives import MalformedRequest

    return MalformedRequest


def _ending(fault: ClientFault) -> Json:
    return {"timeout": True} if "in time" in str(fault) else {"closed": True}


def errors_of(answer: Json) -> set[int]:
    """Every error code in an answer."""
    if isinstance(answer, list):
        return set().union(*map(errors_of, answer))
    if not isinstance(answer, dict):
        return set()
    found = {
        value
        for key, value in answer.items()
        if key.endswith("error_code") and isinstance(value, int) and value
    }
    return found.union(*map(errors_of, answer.values()))


def holds(answer: Json, condition: dict[str, Json]) -> bool:
    """Whether an answer is what a step waits for: no errors, or one of some values at a path."""
    if condition.get("no_errors") and errors_of(answer):
        return False
    if "path" not in condition:
        return True
    found = at_path(answer, condition["path"])
    if "in" in condition:
        return found in condition["in"]
    return found is not None and found not in condition.get("not_in", [])


def prepare(system: System) -> None:
    """Have both coordinators come up: their topics are made when somebody first asks."""
    steps = [
        Step(
            f"p{kind}", "FindCoordinator", 3, {"key": "prepare", "key_type": kind}, until={"no_errors": True}
        )
        for kind in (0, 1)
    ]
    steps.append(Step("p2", "ListGroups", 4, {}, until={"no_errors": True}))
    steps.append(
        Step(
            "p3",
            "DescribeTransactions",
            0,
            {"transactional_ids": ["none"]},
            until={"path": ["transaction_states", 0, "error_code"], "in": [105]},
        )
    )
    # the first producer id may be 0, which answers with an error have too
    steps.append(
        Step("p4", "InitProducerId", 4, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1})
    )
    Runner(system, "prepare-").run(Session(0, tuple(steps)))


def advertised(system: System) -> dict[str, tuple[int, int]]:
    """The versions of every API of our table that a system says it speaks."""
    host, port, settings = system.client("c0", 1)
    link = Link.open(host, port, settings)
    try:
        versions: dict[int, tuple[int, int]] = link.versions
    finally:
        link.close()
    return {api.name: versions[key] for key, api in APIS.items() if key in versions}


def common_versions(first: dict[str, tuple[int, int]], second: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """The versions that both speak and that can be written here."""
    both = {}
    for name in first.keys() & second.keys():
        lowest = max(first[name][0], second[name][0], BY_NAME[name].served_from)
        highest = min(first[name][1], second[name][1])
        if lowest <= highest:
            both[name] = (lowest, highest)
    return dict(sorted(both.items()))

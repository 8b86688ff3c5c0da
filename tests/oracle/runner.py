"""Carries a session out on a system and writes down what it answered.

A transcript is a list of rows, one per step in the order of the session: the step's label, and the answer as
plain data, or what happened instead (`{"closed": …}`, `{"timeout": …}`, `{"unanswered": …}`).
"""

import contextlib
import time
from typing import Any

from tests.oracle.proxy import LossyProxy
from tests.oracle.session import Json, Session, Step
from tests.oracle.systems import SHARED, System
from tests.oracle.values import at_path, labels_in, plain, resolve
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
#: while leaders and coordinators change: what a client asks again for, and for how long
RETRIED_IN_FAULTS = RETRIED | {5, 6, 7, 8, 9, 13, 19, 20, 41, 75, 78}
FAULT_SECONDS_MAX = 90.0
FAULT_REQUEST_SECONDS_MAX = 12.0
#: before a client that lost its connection opens another one (clients: `reconnect.backoff.ms`); what it asked
#: before is carried out by then
RECONNECT_SECONDS = 0.05
#: what a broker needs to see that a connection is closed
CLOSED_SECONDS = 0.1

_GROUP, _TRANSACTION = 0, 1
#: what a coordinator serves: its kind, and the fields that name the group or the transactional id
COORDINATED = {
    **dict.fromkeys(
        ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetDelete", "OffsetFetch",
         "TxnOffsetCommit", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "DescribeShareGroupOffsets",
         "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        (_GROUP, ("group_id", "groups")),
    ),
    "DescribeGroups": (_GROUP, ("groups",)),
    "ConsumerGroupDescribe": (_GROUP, ("group_ids",)),
    "ShareGroupDescribe": (_GROUP, ("group_ids",)),
    "DeleteGroups": (_GROUP, ("groups_names",)),
    **dict.fromkeys(
        ("InitProducerId", "AddOffsetsToTxn", "EndTxn", "AddPartitionsToTxn"),
        (_TRANSACTION, ("transactional_id", "v3_and_below_transactional_id", "transactions")),
    ),
    "DescribeTransactions": (_TRANSACTION, ("transactional_ids",)),
}  # fmt: skip

#: APIs that a partition's leader serves
LED = {
    "Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", "DescribeProducers",
    "WriteTxnMarkers",
}  # fmt: skip
#: steps that are not requests: brokers are killed; until all are back and in sync
KILL, WHOLE = "Kill", "Whole"
#: the connection is closed
CLOSE = "Close"

#: the coordinators' topics with their settings
_INTERNAL_TOPICS = {
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer"},
    "__transaction_state": {"cleanup.policy": "compact", "compression.type": "uncompressed"},
    "__share_group_state": {"cleanup.policy": "delete", "retention.ms": "-1"},
}

#: what a producer without a transaction asks for an id with
NOBODY = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}

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
        #: how long steps are asked again while brokers are away
        self.fault_seconds = FAULT_SECONDS_MAX if until_seconds >= UNTIL_SECONDS_MAX else 2 * until_seconds
        self._links: dict[tuple[str, int], Link] = {}
        self._answers: dict[str, Json] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._faults = False
        #: who is asked for what everybody knows
        self._anyone = 1
        #: what happened last, and when, until the next answer
        self._since: tuple[str, float] | None = None
        #: faults and the seconds until the next answer
        self.waits: list[tuple[str, float]] = []
        #: steps whose answer is still to come, with their tickets, in the order of sending
        self._due: dict[tuple[str, int], list[tuple[Step, int]]] = {}

    def run(self, session: Session) -> Transcript:
        """Carry out every step."""
        self._faults = session.faults
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
        if step.api in (KILL, WHOLE):
            self._answers[step.label] = self._kill(step) if step.api == KILL else self._wait_whole()
            return
        if step.api == CLOSE:
            self._close(step)
            return
        for label in labels_in(step.fields):
            if label not in self._answers:
                self._collect_label(label)
        place = (step.connection, self._broker_of(step))
        if step.later:
            self._send(step, place)
            time.sleep(LATER_PAUSE_SECONDS)
            return
        self._collect(place)
        if step.lost:
            self._lose(step, place[1])
        answer = self._ask(step, place)
        if self._faults:
            answer = self._ask_until_answered(step, answer)
        elif step.until is not None:
            deadline = time.monotonic() + self.until_seconds
            while not holds(answer, step.until) and time.monotonic() < deadline:
                time.sleep(UNTIL_PAUSE_SECONDS)
                answer = self._ask(step, place)
        elif not step.elsewhere:
            deadline = time.monotonic() + RETRY_SECONDS_MAX
            while errors_of(answer) & RETRIED and time.monotonic() < deadline:
                time.sleep(UNTIL_PAUSE_SECONDS)
                answer = self._ask(step, place)
        self._answers[step.label] = answer
        if step.settle:
            time.sleep(self.system.settle_seconds)

    def _close(self, step: Step) -> None:
        """Close a connection to all brokers, and let them see it."""
        for place in [place for place in self._links if place[0] == step.connection]:
            self._collect(place)
            self._links.pop(place).close()
        self._answers[step.label] = {}
        time.sleep(CLOSED_SECONDS)

    def _broker_of(self, step: Step) -> int:
        """Which broker is asked."""
        if step.broker is not None:
            serving = step.broker
        else:
            serving = self._coordinator_of(step)
        return serving % len(self.system.ports) + 1 if step.elsewhere else serving

    def _coordinator_of(self, step: Step) -> int:
        """Where the group or the transactional id of a step is coordinated; the first broker for others."""
        route = COORDINATED.get(step.api)
        if len(self.system.ports) == 1:
            return 1
        if route is None:
            return self._leader_of(step.fields) if self._faults and step.api in LED else self._anyone
        kind, fields = route
        key = next((found for name in fields if (found := _first(step.fields.get(name)))), None)
        key = resolve(key, self.prefix, self._answers)
        if not isinstance(key, str) or not key:
            return self._anyone
        if (kind, key) not in self._coordinators:
            self._coordinators[kind, key] = self._find("FindCoordinator", 3, key=key, key_type=kind)
        return self._coordinators[kind, key]

    def _leader_of(self, fields: dict[str, Json]) -> int:
        """Who leads the first partition of the first topic that a request is about."""
        row = next(iter(fields.get("topic_data") or fields.get("topics") or [{}]))
        topic = resolve(row.get("name") or row.get("topic"), self.prefix, self._answers)
        return self._find("Metadata", 12, topics=[{"name": topic}]) if topic else self._anyone

    def _find(self, api: str, version: int, **fields: Json) -> int:
        """The coordinator, or the leader, that brokers name; while they know none, they are asked again."""
        path: list[str | int] = ["node_id"]
        if api == "Metadata":
            path = ["topics", 0, "partitions", 0, "leader_id"]
        deadline = time.monotonic() + UNTIL_SECONDS_MAX
        while True:
            answer = self._ask(Step("route", api, version, fields), ("route", self._anyone))
            found = at_path(answer, path)
            if (isinstance(found, int) and found > 0) or time.monotonic() > deadline:
                return found if isinstance(found, int) and found > 0 else self._anyone
            if "closed" in answer or "timeout" in answer:
                self._ask_another()
            time.sleep(UNTIL_PAUSE_SECONDS)

    def _ask_another(self) -> None:
        self._anyone = self._anyone % len(self.system.ports) + 1

    # Faults

    def _kill(self, step: Step) -> Json:
        """Kill brokers and have them started again."""
        whose = step.fields.get("whose")
        what = "all brokers are killed"
        brokers = list(self.system.ports)
        if whose is not None:
            brokers = [self._coordinator_of(Step("route", whose["api"], 0, whose))]
            what = f"the {whose['called']} is killed"
        assert self.system.crash is not None, "this system cannot be killed"
        self.system.crash(brokers)
        # the crash before this one may have been waited for
        self._since = what, time.monotonic()
        return {}

    def _lose(self, step: Step, broker: int) -> None:
        """Send a request whose answer gets lost."""
        with LossyProxy(self.system.ports[broker][0]) as proxy, contextlib.suppress(ClientFault):
            link = Link.open(*self.system.client(step.connection, broker, proxy.port))
            api = BY_NAME[step.api]
            fields = resolve(step.fields, self.prefix, self._answers)
            proxy.lose(step.lost)
            link.receive(link.send(api.key, step.version, messages.encode_request(api, step.version, fields)))
        time.sleep(RECONNECT_SECONDS)
        self._since = f"an answer to {step.api} is lost", time.monotonic()

    def _ask_until_answered(self, step: Step, answer: Json) -> Json:
        """What a client gets that does not give up."""
        deadline = time.monotonic() + self.fault_seconds
        while (
            "closed" in answer
            or "timeout" in answer
            or errors_of(answer) & RETRIED_IN_FAULTS
            or (step.until is not None and not holds(answer, step.until))
        ) and time.monotonic() < deadline:
            time.sleep(UNTIL_PAUSE_SECONDS)
            if "closed" in answer or "timeout" in answer:
                self._ask_another()
            self._coordinators.clear()
            answer = self._ask(step, (step.connection, self._broker_of(step)))
        if self._since is not None:
            what, since = self._since
            self.waits.append((what, time.monotonic() - since))
            self._since = None
        return answer

    def _wait_whole(self) -> Json:
        """Until every broker knows all others, all replicas are in sync, and it hands out producer ids."""
        deadline = time.monotonic() + self.fault_seconds
        while True:
            if all(map(self._serves, self.system.ports)):
                return {"whole": True}
            if time.monotonic() > deadline:
                return {"whole": False}
            time.sleep(0.1)

    def _serves(self, broker: int) -> bool:
        place = ("route", broker)
        if not self._whole(self._ask(Step("route", "Metadata", 12, {"topics": None}), place)):
            return False
        # Kafka's first one after a start is refused while it fetches some
        answer = self._ask(Step("route", "InitProducerId", 4, NOBODY), place)
        return "producer_id" in answer and not errors_of(answer)

    def _whole(self, answer: Json) -> bool:
        partitions = [row for topic in answer.get("topics", []) for row in topic["partitions"]]
        return len(answer.get("brokers", [])) == len(self.system.ports) and all(
            row["leader_id"] > 0 and len(row["isr_nodes"]) == len(row["replica_nodes"]) for row in partitions
        )

    # Requests

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
        timeout_ms = round(FAULT_REQUEST_SECONDS_MAX * 1000) if self._faults else None
        for step, ticket in self._due.pop(place, ()):
            try:
                body = self._links[place].receive(ticket, timeout_ms)
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
    """Whether an answer is what a step waits for: no errors, one of some values at a path, or so many."""
    if condition.get("no_errors") and errors_of(answer):
        return False
    if not all(holds(answer, one) for one in condition.get("every", ())):
        return False
    if "path" not in condition:
        return True
    found = at_path(answer, condition["path"])
    if "count" in condition:
        return isinstance(found, list) and len(found) == condition["count"]
    if "in" in condition:
        return found in condition["in"]
    return found is not None and found not in condition.get("not_in", [])


def prepare(system: System) -> None:
    """Have both coordinators come up: their topics are made when somebody first asks.

    Several brokers coordinate where their topics are led: that is the same on all systems.
    """
    steps = _internal_topics(len(system.ports)) if len(system.ports) > 1 else []
    steps += [
        Step(
            f"p{kind}", "FindCoordinator", 3, {"key": "prepare", "key_type": kind}, until={"no_errors": True}
        )
        for kind in (0, 1)
    ]
    share_partition = {"key_type": 2, "coordinator_keys": ["prepare:AAAAAAAAAAAAAAAAAAAAAQ:0"]}
    steps.append(Step("p4", "FindCoordinator", 6, share_partition, until={"no_errors": True}))
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
    # The first producer id may be 0, which answers with an error have too. Each broker fetches its own.
    steps += [
        Step(f"i{broker}", "InitProducerId", 4, NOBODY, until={"no_errors": True}, broker=broker)
        for broker in system.ports
    ]
    Runner(system, "prepare-").run(Session(0, tuple(steps)))


def share_coordinator(brokers: int) -> int:
    """The broker that keeps the state of all share partitions: the leader of its topic's only partition."""
    return list(_INTERNAL_TOPICS).index("__share_group_state") % brokers + 1


def _internal_topics(brokers: int) -> list[Step]:
    """The coordinators' topics, each partition led by another broker."""
    partitions = {"__share_group_state": "share.coordinator.state.topic.num.partitions"}
    steps = []
    for first, (name, settings) in enumerate(_INTERNAL_TOPICS.items()):
        assignments = [
            {
                "partition_index": number,
                "broker_ids": [(first + number + more) % brokers + 1 for more in range(brokers)],
            }
            for number in range(int(SHARED[partitions.get(name, "offsets.topic.num.partitions")]))
        ]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": [{"name": key, "value": value} for key, value in settings.items()],
        }
        steps.append(Step(f"t{first}", "CreateTopics", 7, {"topics": [topic], "timeout": 10_000}))
    return steps


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

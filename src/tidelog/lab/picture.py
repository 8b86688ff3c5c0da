"""The lab at this moment as one JSON value, for a page to draw; and the changes between two looks as events.

    {"scenario": "acks", "brokers": [{"id": 1, "state": "running", "controller": true, "cut": false,
      "delay_ms": 0, "address": "127.0.0.1:20111"}],
     "topics": [{"name": "orders", "partitions": [{"partition": 0, "leader": 1, "isr": [1, 2], "log_start": 0,
      "high_watermark": 9, "last_stable": 9, "replicas": [{"broker": 1, "log_end": 10, "leads": true,
      "in_sync": true, "alive": true}]}]}],
     "consumers": [{"name": "anna", "group": "g", "state": "running", "assignment": [["orders", 0]],
      "positions": [["orders", 0, 7]], "committed": [["orders", 0, 5]], "processed": 7}]}

States of brokers and consumers: `running`, `paused`, `down`. Positions are null while there is no leader.
"""

import threading
from typing import Any

from tidelog.client.faults import ClientFault
from tidelog.lab.lab import Lab, Positions
from tidelog.server.cluster_view import ClusterView, NoView, PartitionView

LOOK_SECONDS = 0.4
NO_POSITIONS = Positions(-1, -1, -1)


def picture(lab: Lab) -> dict[str, Any]:
    """Look at everything once; asks brokers and reads files, so not for an event loop."""
    try:
        view = lab.cluster.view()
    except NoView:
        view = None
    return {
        "scenario": lab.scenario.name,
        "brokers": _brokers(lab, view),
        "topics": [_topic(lab, name, view) for name in lab.topics],
        "consumers": [_consumer(lab, name) for name in list(lab.consumers)],
    }


def _brokers(lab: Lab, view: ClusterView | None) -> list[dict[str, Any]]:
    network = lab.cluster.network
    return [
        {
            "id": number,
            "state": lab.cluster.state(number),
            "controller": view is not None and view.controller_id == number,
            "known": view is not None and number in view.addresses,
            "cut": network is not None and number in network.cut_brokers,
            "delay_ms": 0 if network is None else network.slow_brokers.get(number, 0),
            "address": lab.cluster.advertised_address(number),
        }
        for number in lab.cluster.broker_ids
    ]


def _topic(lab: Lab, name: str, view: ClusterView | None) -> dict[str, Any]:
    found = [] if view is None else [item for item in view.partitions if item.topic == name]
    return {"name": name, "partitions": [_partition(lab, item) for item in sorted(found)]}


def _partition(lab: Lab, found: PartitionView) -> dict[str, Any]:
    positions = NO_POSITIONS
    network = lab.cluster.network
    reachable = network is None or found.leader not in network.cut_brokers
    if found.leader >= 0 and reachable and lab.cluster.state(found.leader) == "running":
        positions = _positions(lab, found)
    return {
        "partition": found.partition,
        "leader": found.leader,
        "isr": list(found.isr),
        "log_start": positions.log_start if positions.log_start >= 0 else None,
        "high_watermark": positions.high_watermark if positions.high_watermark >= 0 else None,
        "last_stable": positions.last_stable if positions.last_stable >= 0 else None,
        "replicas": [replica._asdict() for replica in lab.replicas_of(found)],
    }


def _positions(lab: Lab, found: PartitionView) -> Positions:
    try:
        return lab.positions_at(found.leader, found.topic, found.partition)
    except ClientFault:
        return NO_POSITIONS  # the leader went between two questions


def _consumer(lab: Lab, name: str) -> dict[str, Any]:
    consumer = lab.consumers[name]
    positions: dict[tuple[str, int], int] = {}
    for seen in consumer.records:
        positions[(seen.topic, seen.partition)] = seen.offset + 1
    return {
        "name": name,
        "group": consumer.group,
        "state": consumer.state,
        "assignment": [list(place) for place in consumer.assignment],
        "positions": [[*place, offset] for place, offset in sorted(positions.items())],
        "committed": [[*place, offset] for place, offset in sorted(consumer.commits.items())],
        "processed": len(consumer.records),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """What differs, as (kind, sentence, fields) for the event stream."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    old_brokers = {row["id"]: row for row in before["brokers"]}
    for row in after["brokers"]:
        old = old_brokers.get(row["id"], row)
        if row["known"] != old["known"]:
            text = f"broker {row['id']} is {'a member of' if row['known'] else 'gone from'} the cluster"
            found.append(("broker", text, {"broker": row["id"], "known": row["known"]}))
        if row["controller"] and not old["controller"]:
            found.append(("controller", f"broker {row['id']} is the controller", {"broker": row["id"]}))
    old_partitions = _partitions(before)
    for place, now in _partitions(after).items():
        then = old_partitions.get(place, now)
        if then["leader"] != now["leader"]:
            led = f"broker {now['leader']} leads" if now["leader"] >= 0 else "nobody leads"
            text = f"{led} {place[0]}-{place[1]}, before it was {then['leader']}"
            found.append(
                ("leader", text, {"topic": place[0], "partition": place[1], "leader": now["leader"]})
            )
        if set(then["isr"]) != set(now["isr"]):
            text = f"the ISR of {place[0]}-{place[1]} is {sorted(now['isr'])}, it was {sorted(then['isr'])}"
            found.append(("isr", text, {"topic": place[0], "partition": place[1], "isr": now["isr"]}))
    return found


def _partitions(looked: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (topic["name"], row["partition"]): row for topic in looked["topics"] for row in topic["partitions"]
    }


class Watcher:
    """Looks at a lab again and again in a thread, keeps the last picture, and tells what changed."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._ending = threading.Event()
        self.last: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="lab-watcher", daemon=True)

    def start(self) -> "Watcher":
        self._thread.start()
        return self

    def stop(self) -> None:
        """No look is under way when this returns."""
        self._ending.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._ending.is_set():
            now = picture(self._lab)
            if self.last is not None:
                for kind, text, fields in changes(self.last, now):
                    self._lab.events.emit(kind, text, **fields)
            self.last = now
            self._ending.wait(LOOK_SECONDS)

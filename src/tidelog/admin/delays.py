"""What waits in delay topics, asked of each broker (`broker/requests/handlers/describe_delays`)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.client.cluster import Cluster
from tidelog.client.faults import LinkFault, Refusal
from tidelog.protocol.apis import DESCRIBE_DELAYS


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A record that waits."""

    topic: str
    partition: int
    offset: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class SeenDelays:
    """A partition of a delay topic, as its leader sees it."""

    topic: str
    partition: int
    target: str
    waiting: int
    due: int
    next_due_ms: int | None
    late_ms: int
    forwarded: int
    cancelled: int
    #: why nothing is forwarded; empty while all is well
    reason: str
    records: tuple[WaitingRecord, ...]


def delays(cluster: ClusterAdmin, topic: str | None = None, records: int = 0) -> list[SeenDelays]:
    """The partitions of a delay topic, or of all, each with the first of the records that wait."""

    def ask(client: Cluster) -> list[SeenDelays]:
        body = json.dumps({"topic": topic, "records": records}).encode()
        rows: list[SeenDelays] = []
        for broker_id in client.broker_ids():
            link = client.link_to(broker_id)
            try:
                told = json.loads(bytes(link.receive(link.send(DESCRIBE_DELAYS, 0, body))))
            except ValueError as fault:
                raise LinkFault(f"broker {broker_id} does not tell of delayed records: {fault}") from fault
            if told.get("error_code"):
                raise Refusal(told["error_code"], "delayed records")
            rows += map(_seen, told["partitions"])
        return sorted(rows, key=lambda row: (row.topic, row.partition))

    return cluster.asked("delayed records", ask)


def _seen(row: dict[str, Any]) -> SeenDelays:
    topic, partition = row["topic"], row["partition"]
    records = tuple(
        WaitingRecord(topic, partition, each["offset"], each["due_ms"]) for each in row.pop("records")
    )
    return SeenDelays(**row, records=records)


def first_due(seen: Iterable[SeenDelays], count: int) -> list[WaitingRecord]:
    """The records of several partitions that are due first."""
    records = [record for each in seen for record in each.records]
    return sorted(records, key=lambda each: (each.due_ms, each.partition, each.offset))[:count]

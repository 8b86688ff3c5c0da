"""Asks brokers how their background jobs fare (`broker/requests/handlers/describe_background_jobs`).

No Kafka protocol has a question for it, and a broker that does not know an API closes the connection. So only
brokers that have a setting of ours are asked, as the last thing on their connection.
"""

import json
from collections.abc import Iterable
from typing import Any

from tidelog.admin.broker_links import BrokerLinks
from tidelog.admin.diagnosis import (
    SETTING_OF_TIDELOG,
    SeenBroker,
    SeenJob,
    SeenJobs,
    SeenRefusedCut,
    SeenUncleanable,
)
from tidelog.client.faults import ClientFault
from tidelog.protocol.apis import DESCRIBE_BACKGROUND_JOBS

WHAT = "background jobs"


def ask_for_jobs(brokers: BrokerLinks, seen: Iterable[SeenBroker]) -> SeenJobs:
    """What each broker of ours tells; what it does not is noted as unseen."""
    jobs: list[SeenJob] = []
    uncleanable: list[SeenUncleanable] = []
    counts: dict[int, int] = {}
    unexpected: dict[int, int] = {}
    offline: dict[tuple[int, str], str] = {}
    cuts: list[SeenRefusedCut] = []
    for broker in seen:
        if broker.id not in brokers.links or SETTING_OF_TIDELOG not in broker.configs:
            continue
        told = _ask(brokers, broker.id)
        if told is None:
            continue
        jobs += [
            SeenJob(
                broker.id,
                str(row["name"]),
                int(row["failed_in_a_row"]),
                float(row["seconds_since_last_run"]),
                str(row["fault"]),
            )
            for row in told["jobs"]
        ]
        uncleanable += [
            SeenUncleanable(broker.id, str(row["partition"]), str(row["reason"]))
            for row in told["uncleanable"]
        ]
        counts[broker.id] = int(told["uncleanable_count"])
        unexpected[broker.id] = int(told["unexpected_errors"])
        for row in told.get("offline_directories", ()):
            offline[broker.id, str(row["path"])] = str(row["reason"])
        cuts += [
            SeenRefusedCut(
                broker.id,
                str(row["partition"]),
                int(row["leader"]),
                int(row["offset"]),
                int(row["high_watermark"]),
            )
            for row in told.get("refused_cuts", ())
        ]
    return SeenJobs(tuple(jobs), tuple(uncleanable), counts, unexpected, offline, tuple(cuts))


def _ask(brokers: BrokerLinks, broker: int) -> dict[str, Any] | None:
    link = brokers.links[broker]
    try:
        told = json.loads(bytes(link.receive(link.send(DESCRIBE_BACKGROUND_JOBS, 0, b""))))
    except (ClientFault, ValueError) as fault:
        brokers.unseen[f"{WHAT} of broker {broker}: {fault}"] = None
        return None
    return told if brokers.allowed(int(told.get("error_code", 0)), WHAT) else None

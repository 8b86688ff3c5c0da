"""Leadership of a real cluster returns to the preferred replicas by itself when a killed broker is back."""

import time
from collections.abc import Callable

from tidelog.testing.cluster import RunningCluster

SETTINGS = {"leader.imbalance.check.interval.seconds": "1", "broker.session.timeout.ms": "3000"}
VICTIM = 1
WAIT_SECONDS_MAX = 30.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {WAIT_SECONDS_MAX} s"
        time.sleep(0.05)


def led_by(cluster: RunningCluster, broker_id: int) -> list[int]:
    return [view.partition for view in cluster.view().partitions if view.leader == broker_id]


def preferred_of(cluster: RunningCluster, broker_id: int) -> list[int]:
    return [view.partition for view in cluster.view().partitions if view.replicas[0] == broker_id]


def test_leadership_returns_to_the_preferred_replicas() -> None:
    with RunningCluster(3, SETTINGS) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.wait_in_sync()
        preferred = preferred_of(cluster, VICTIM)
        assert len(preferred) == 2
        assert led_by(cluster, VICTIM) == preferred
        cluster.kill(VICTIM)
        until(lambda: not led_by(cluster, VICTIM), "new leaders")
        cluster.start(VICTIM)
        cluster.wait_in_sync()
        until(lambda: led_by(cluster, VICTIM) == preferred, "leadership of the preferred replicas")
        assert not cluster.tracebacks()

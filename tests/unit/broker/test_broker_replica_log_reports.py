"""What a broker says of its logs while nobody leads, until the image shows that it was heard."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidelog.broker.replication.replica_log_reports import RETRY_MS, ReplicaLogReports
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Done, ReportReplicaLogs
from tidelog.model.identifiers import NO_LEADER


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms

    monotonic_ms = now_ms


class Bench:
    """A broker with one replica, and a controller that answers when it is told to."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.state = SimpleNamespace(leader=NO_LEADER, leader_epoch=5, replica_logs=())
        self.asked: list[tuple[ReportReplicaLogs, Any]] = []
        metadata: Any = SimpleNamespace(
            node_id=2,
            broker_epoch=7,
            submit=lambda command, decided: self.asked.append((command, decided)),
            image=SimpleNamespace(partition=lambda topic, index: self.state),
        )
        self.partition: Any = SimplePartition()
        replicas: Any = SimpleNamespace(replica=lambda topic, index: self.partition)
        self.reports = ReplicaLogReports(metadata, replicas, self.timers)

    def wait(self, milliseconds: int) -> None:
        self.clock.at_ms += milliseconds
        self.timers.run_due()

    def answer(self) -> None:
        command, decided = self.asked.pop(0)
        decided((Done(),) * command.item_count)


class SimplePartition:
    topic, index, topic_id = "t", 0, UUID(int=1)
    leads, leader_epoch = False, 5
    position = SimpleNamespace(last_fetched_epoch=4, fetch_offset=34)


def test_what_the_image_does_not_show_is_said_again() -> None:
    """It was taken note of, and given up at once: the controller did not know where the log is."""
    bench = Bench()
    bench.reports.consider(bench.partition)
    bench.wait(0)
    bench.reports.consider(bench.partition)  # the image changes while the message is on its way
    bench.answer()
    bench.wait(RETRY_MS)
    assert len(bench.asked) == 1
    bench.state.replica_logs = ((2, None),)
    bench.answer()
    bench.wait(RETRY_MS)
    assert not bench.asked and "due=0" in repr(bench.reports)


def test_what_is_new_does_not_wait_for_what_is_said_again() -> None:
    bench = Bench()
    bench.reports.consider(bench.partition)
    bench.wait(0)
    bench.answer()
    bench.partition = SimplePartition()
    bench.reports.consider(bench.partition)
    bench.wait(0)
    [(command, _)] = bench.asked
    assert command.item_count == 1

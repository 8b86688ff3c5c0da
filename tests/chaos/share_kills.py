"""Kill members of a share group and the leaders of what it reads, and see that no record is lost.

    python -m tests.chaos.share_kills [--records 200000] [--seconds 150] [--reject] [--java 2]

Three brokers, three replicas, a topic of two partitions. Eight members, processes of their own, of librdkafka
and `--java` of them of the Java client, accept what they get; records are produced meanwhile, spread over
`--seconds`. Every few seconds a member is killed with SIGKILL and another takes its place; in turn the
leaders of the two partitions are, and come back. Now and then a member is stopped until its locks are over,
and goes on. With `--reject` one record of ten is rejected, and the group has a topic for dead letters. What
must hold at the end: `share_history.py`, and nothing is left to the group. `--keep` keeps what members said.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.chaos.share_history import Figures, Said, check
from tests.conformance.drivers.java import java_command
from tests.support.child_programs import environment, program
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.share_groups import ShareGroups
from tidelog.client.client_settings import ClientSettings
from tidelog.server.broker_process import BrokerNotStarted
from tidelog.testing.cluster import RunningCluster

GROUP, TOPIC, DEAD = "workers", "jobs", "dlq.jobs"
PARTITIONS, MEMBERS = 2, 8
DELIVERIES_MAX = 10
#: the least that brokers allow
LOCK_MS = 15_000
STOPPED_SECONDS = LOCK_MS / 1000 + 3.0
AWAY_SECONDS = 3.0
STARTS_MAX = 4
SETTLE_SECONDS_MAX = 120.0
QUIET_SECONDS = 3.0
TICK_SECONDS = 0.1
JAVA_SOURCE = Path(__file__).parent / "java" / "ShareMember.java"


class Plan(NamedTuple):
    """What is to be done."""

    records: int = 200_000
    seconds: float = 150.0
    reject: bool = False
    java: int = 2
    #: seconds between kills of members, of leaders, and until a member is stopped again
    member_seconds: float = 4.0
    leader_seconds: float = 25.0
    pause_seconds: float = 30.0
    seed: int = 1


class Member:
    """A process, and what it said."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self.said: list[Said] = []
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0, env=environment()
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # it was killed while it said this
            word, at, *why, numbers = line.split()
            told = tuple(map(int, numbers.split(",")))
            self.said.append(Said(float(at), self.name, word, told, "".join(why)))

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and read all that it said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(10)


class Feeder(threading.Thread):
    """Produces numbers, spread over the time of the run."""

    def __init__(self, bootstrap: str, plan: Plan) -> None:
        super().__init__(daemon=True)
        self.plan = plan
        self.produced: set[int] = set()
        self.failed: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self.plan.records):
            due = began + number * self.plan.seconds / self.plan.records
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(min(left, 0.05))
            self._send(number)
        self._producer.flush(60)

    def _send(self, number: int) -> None:
        def told(error: object, _: object) -> None:
            if error is None:
                self.produced.add(number)
            else:
                self.failed.append(f"{number}: {error}")

        self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)


class Run:
    """A cluster, members, and the kills."""

    def __init__(self, plan: Plan, cluster: RunningCluster, folder: Path) -> None:
        self.plan, self.cluster, self.folder = plan, cluster, folder
        self.random = random.Random(plan.seed)
        self.members: list[Member] = []
        self.ended: list[Member] = []
        self.killed: set[str] = set()
        #: members that ended by themselves, and what they said last
        self.fallen: dict[str, str] = {}
        self.leader_kills = self.pauses = 0
        #: members that stood still, and when they went on
        self.went_on: dict[str, list[float]] = defaultdict(list)
        #: the place of the member that stands still, and until when
        self._stopped: tuple[int, float] | None = None
        self._names = 0
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(LOCK_MS),
            "share.delivery.count.limit": str(DELIVERIES_MAX),
        }
        if plan.reject:
            cluster.create_topic(DEAD, PARTITIONS, 3, errors_deadletterqueue_group_enable=True)
            settings["errors.deadletterqueue.topic.name"] = DEAD
            settings["errors.deadletterqueue.copy.record.enable"] = "true"
        _configure(cluster.bootstrap, settings)
        self.feeder = Feeder(cluster.bootstrap, plan)

    def start_member(self, *, java: bool) -> Member:
        self._names += 1
        arguments = [self.cluster.bootstrap, GROUP, TOPIC, "reject" if self.plan.reject else "accept"]
        command = (
            java_command(JAVA_SOURCE, *arguments)
            if java
            else [*program("tests.chaos.share_member"), *arguments]
        )
        return Member(f"{'java' if java else 'librdkafka'}-{self._names}", command, self.folder)

    def run(self) -> None:
        """Produce and kill until everything is produced, then wait until everything is dealt with."""
        self.members = [self.start_member(java=number < self.plan.java) for number in range(MEMBERS)]
        self.feeder.start()
        deeds = [
            (self.kill_member, self.plan.member_seconds),
            (self.kill_leader, self.plan.leader_seconds),
            (self.stop_member, self.plan.pause_seconds),
        ]
        due = [time.monotonic() + seconds for _, seconds in deeds]
        while self.feeder.is_alive():
            time.sleep(TICK_SECONDS)
            self.let_go_on(time.monotonic())
            self.replace_fallen()
            for index, (deed, seconds) in enumerate(deeds):
                if time.monotonic() >= due[index]:
                    deed()
                    due[index] = time.monotonic() + seconds
        self.let_go_on(float("inf"))
        self.settle()

    def stop_member(self) -> None:
        """Have a member stand still until its locks are over."""
        if self._stopped is None:
            place = self.random.randrange(MEMBERS)
            self.members[place].process.send_signal(signal.SIGSTOP)
            self._stopped = place, time.monotonic() + STOPPED_SECONDS
            self.pauses += 1

    def let_go_on(self, now: float) -> None:
        if self._stopped is not None and self._stopped[1] <= now:
            member = self.members[self._stopped[0]]
            self.went_on[member.name].append(time.monotonic())
            member.process.send_signal(signal.SIGCONT)
            self._stopped = None

    def kill_member(self) -> None:
        place = self.random.choice([each for each in range(MEMBERS) if each not in (self._stopped or ())[:1]])
        self.killed.add(self.members[place].name)
        self.replace(place)

    def replace_fallen(self) -> None:
        for place, member in enumerate(self.members):
            if member.process.poll() is not None:
                self.replace(place)
                lines = member.log.read_text(errors="replace").strip().splitlines()
                self.fallen[member.name] = f"exit code {member.process.returncode}: {lines[-1:]}"

    def replace(self, place: int) -> None:
        """Kill a member, and start another in its place."""
        member = self.members[place]
        member.end(signal.SIGKILL)
        self.ended.append(member)
        self.members[place] = self.start_member(java=place < self.plan.java)

    def kill_leader(self) -> None:
        self.cluster.wait_in_sync([TOPIC], 120.0)
        leader = self.cluster.leader(TOPIC, self.leader_kills % PARTITIONS)
        self.cluster.kill(leader)
        self.leader_kills += 1
        time.sleep(AWAY_SECONDS)
        for attempt in range(STARTS_MAX):
            try:
                self.cluster.start(leader)
            except BrokerNotStarted:
                # The machine may have much else to do.
                if attempt == STARTS_MAX - 1:
                    raise
            else:
                return

    def settle(self) -> None:
        """Wait until nothing is left, and a little longer for what must not come."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self.left() != 0 and time.monotonic() < deadline:
            self.replace_fallen()
            time.sleep(0.5)
        time.sleep(QUIET_SECONDS)
        for member in self.members:
            member.end(signal.SIGTERM)
            self.ended.append(member)
        self.members = []

    def left(self) -> int | None:
        """What the group has still to deal with; None while it is not known."""
        settings = ClientSettings.from_options({"bootstrap.servers": self.cluster.bootstrap})
        with ClusterAdmin(lambda: settings) as admin:
            lags = [lag for _, lag in ShareGroups(admin).starts(GROUP).values()]
        if len(lags) < PARTITIONS:
            return None
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == PARTITIONS else None

    def dead_letters(self) -> Counter[int] | None:
        return _values(self.cluster.bootstrap, DEAD) if self.plan.reject else None

    def checked(self) -> tuple[list[str], Figures]:
        """What is wrong, and the figures."""
        said = [line for member in self.ended for line in member.said]
        (self.folder / "said.json").write_text(json.dumps(said))
        faults, figures = check(
            self.feeder.produced,
            said,
            self.killed,
            self.fallen,
            self.went_on,
            self.dead_letters(),
            DELIVERIES_MAX,
        )
        faults += [f"not produced: {fault}" for fault in self.feeder.failed[:3]]
        if len(self.feeder.produced) != self.plan.records:
            faults.append(f"{len(self.feeder.produced)} of {self.plan.records} were produced")
        if left := self.left():
            faults.append(f"the group has {left} records left")
        return faults + self.cluster.tracebacks(), figures

    def close(self) -> None:
        for member in self.members:
            member.end(signal.SIGKILL)


def _configure(bootstrap: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _values(bootstrap: str, topic: str) -> Counter[int]:
    """The numbers in a topic, each as often as it is there."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: Counter[int] = Counter()
    ended: set[int | None] = set()
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(2_000, 0.5):
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found[int(message.value() or b"")] += 1
    consumer.close()
    assert len(ended) == PARTITIONS, f"{topic} could not be read to its end"
    return found


def run(plan: Plan, folder: Path) -> tuple[list[str], str]:
    """All of it: what is wrong, and the figures in words."""
    began = time.monotonic()
    with RunningCluster(3) as cluster:
        current = Run(plan, cluster, folder)
        try:
            current.run()
            faults, figures = current.checked()
        finally:
            current.close()
    words = (
        f"{figures}; {len(current.killed)} members and {current.leader_kills} leaders killed, "
        f"{current.pauses} members stopped for {STOPPED_SECONDS:.0f} s, "
        f"{len(current.fallen)} ended by themselves {current.fallen or ''}; "
        f"{time.monotonic() - began:.0f} s in all; faults: {faults or 'none'}"
    )
    return faults, words


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=150.0, help="over which they are produced")
    parser.add_argument("--reject", action="store_true", help="reject some, to a topic for dead letters")
    parser.add_argument("--java", type=int, default=2, help="so many of the members are of the Java client")
    parser.add_argument("--leader-seconds", type=float, default=25.0, help="between kills of leaders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for what members said")
    given = parser.parse_args()
    # So that a run that is told to end closes what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    plan = Plan(
        given.records,
        given.seconds,
        given.reject,
        given.java,
        leader_seconds=given.leader_seconds,
        seed=given.seed,
    )
    with tempfile.TemporaryDirectory(prefix="tidelog-share-kills-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        faults, words = run(plan, folder)
    print(words, flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

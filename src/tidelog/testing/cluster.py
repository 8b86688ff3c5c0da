"""A real cluster for a test: several broker processes that share one coordination store.

    with RunningCluster(3) as cluster:
        cluster.create_topic("orders", partitions=6)      # as many replicas as brokers, three at most
        cluster.kill(cluster.leader("orders", 0))         # SIGKILL
        ...
        cluster.start(1)                                  # on the same port, with the same data
        cluster.wait_in_sync()

Brokers are numbered from 1, listen on ports of 127.0.0.1 that stay theirs while they are down, and keep data
and logs (laid out as `server/local_cluster.py` says) in a temporary folder, which goes with the cluster
unless the caller chose one. They meet in the embedded store, unless `zookeeper` names an ensemble.

`start`, `stop`, `kill`, `restart`, `pause` and `resume` take a broker's number, or none for all of them.
Every wait has a bound. No process outlives this one, however it ends, not even a paused broker (see
`BrokerProcess`).
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tidelog.server import local_cluster
from tidelog.server.broker_process import BrokerNotStarted, BrokerProcess
from tidelog.server.cluster_view import ClusterView, NoView, PartitionView, ask
from tidelog.testing.ports import ReservedPort

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
KILL_SECONDS_MAX = 10.0
VIEW_SECONDS_MAX = 60.0
IN_SYNC_SECONDS_MAX = 60.0
TOPIC_SECONDS_MAX = 20.0
POLL_SECONDS = 0.02
ASK_SECONDS_MAX = 5.0

# What tests want and production does not: no wait before a group's first rebalance.
TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


class RunningCluster:
    """Brokers 1 to `brokers` in processes of their own; usable as a context manager.

    `settings` go to every broker, `settings_of` to one. `command_prefix(broker_id)` is put before a broker's
    command line (`ip netns exec …`, `taskset …`).
    """

    __test__ = False

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        racks: Sequence[str] = (),
        zookeeper: str | None = None,
        data_directory: Path | None = None,
        log_level: str = "info",
        command_prefix: Callable[[int], Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        if racks and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks for {brokers} brokers: give one for each")
        self.broker_ids = tuple(range(1, brokers + 1))
        self.racks = tuple(racks)
        self.zookeeper = zookeeper
        self.settings = {**TEST_SETTINGS, **local_cluster.replication_settings(brokers), **(settings or {})}
        if zookeeper is not None:
            self.settings["zookeeper.connect"] = zookeeper
        self.settings_of = {number: dict(values) for number, values in (settings_of or {}).items()}
        self.log_level = log_level
        self._command_prefix = command_prefix
        self._environment = environment
        self._owns_data = data_directory is None
        self.data_directory = data_directory or Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
        self._ports: dict[int, ReservedPort] = {}
        self._processes: dict[int, BrokerProcess] = {}
        self._paused: set[int] = set()
        for number in self.broker_ids:
            self._add(number)

    def __repr__(self) -> str:
        states = " ".join(f"{number}:{self.state(number)}" for number in self.broker_ids)
        return f"<RunningCluster {states} data={self.data_directory}>"

    def __enter__(self) -> "RunningCluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What is known without asking anyone

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not, as clients take them."""
        return ",".join(self.address(number) for number in self.broker_ids)

    def address(self, broker_id: int) -> str:
        """`host:port` of one broker: what it advertises once it was ready."""
        ready = self._processes[broker_id].ready
        return f"127.0.0.1:{self.port(broker_id)}" if ready is None else ready.bootstrap

    def port(self, broker_id: int) -> int:
        """The port that is reserved for the broker."""
        return self._ports[broker_id].port

    def data_directory_of(self, broker_id: int) -> Path:
        """The log.dirs of one broker."""
        return local_cluster.data_folder(self.data_directory, broker_id)

    def log_path(self, broker_id: int) -> Path:
        return local_cluster.log_file(self.data_directory, broker_id)

    def log_text(self, broker_id: int) -> str:
        """Everything the broker logged, over all its lives."""
        path = self.log_path(broker_id)
        return path.read_text(errors="replace") if path.exists() else ""

    def process_id(self, broker_id: int) -> int | None:
        """The process id of a broker that runs, else None."""
        return self._processes[broker_id].process_id if self.running(broker_id) else None

    def exit_code(self, broker_id: int) -> int | None:
        """How the broker's last life ended (-9: SIGKILL); None before its first end."""
        return self._processes[broker_id].exit_code

    def running(self, broker_id: int) -> bool:
        """True for a broker whose process is there, paused or not."""
        return self._processes[broker_id].running

    def state(self, broker_id: int) -> str:
        """`running`, `paused` or `down`."""
        if not self.running(broker_id):
            return "down"
        return "paused" if broker_id in self._paused else "running"

    @property
    def responsive_ids(self) -> tuple[int, ...]:
        """The brokers that run and are not paused."""
        return tuple(number for number in self.broker_ids if self.state(number) == "running")

    # Starting and ending

    def start(
        self,
        broker_id: int | None = None,
        *,
        known: bool = True,
        within_seconds: float = START_SECONDS_MAX,
    ) -> "RunningCluster":
        """Start a broker, or all that are down, side by side; return when they serve.

        With `known`, every broker that answers must know them too: not to be had while the network is cut.
        """
        wanted = [number for number in self._chosen(broker_id) if not self.running(number)]
        if broker_id is not None and not wanted:
            raise RuntimeError(f"broker {broker_id} runs already")
        try:
            for number in wanted:
                process = self._processes[number]
                self._reap(number)
                process.launch()
            deadline = time.monotonic() + within_seconds
            for number in wanted:
                self._processes[number].wait_ready(max(0.1, deadline - time.monotonic()))
            if wanted and known:
                self.wait_known(wanted)
        except BaseException:
            if broker_id is None:
                self.close()
            raise
        return self

    def stop(self, broker_id: int | None = None) -> None:
        """Stop cleanly, as SIGTERM does, one after the other with the controller last; the data stays."""
        chosen = [
            number for number in self._chosen(broker_id) if self._processes[number].process_id is not None
        ]
        if len(chosen) > 1:
            controller = self.controller()
            chosen.sort(key=lambda number: number == controller)
        late: list[str] = []
        for number in chosen:
            self._paused.discard(number)
            try:
                self._processes[number].stop(STOP_SECONDS_MAX)
            except TimeoutError as fault:
                late.append(str(fault))
        if late:
            raise TimeoutError("; ".join(late))

    def kill(self, broker_id: int | None = None) -> None:
        """End with SIGKILL, as a crash would; all of them at the same moment when no number is given."""
        chosen = self._chosen(broker_id)
        for number in chosen:
            self._processes[number].signal(signal.SIGKILL)
        for number in chosen:
            self._paused.discard(number)
            self._processes[number].kill(KILL_SECONDS_MAX)

    def restart(self, broker_id: int | None = None) -> None:
        """Stop cleanly and start again on the same port with the same data."""
        self.stop(broker_id)
        self.start(broker_id)

    def pause(self, broker_id: int | None = None) -> None:
        """Stop it with SIGSTOP: it holds its sockets and answers nobody."""
        self._signal_running(broker_id, signal.SIGSTOP)
        self._paused |= set(self._chosen(broker_id))

    def resume(self, broker_id: int | None = None) -> None:
        """Let it go on with SIGCONT."""
        self._signal_running(broker_id, signal.SIGCONT)
        self._paused -= set(self._chosen(broker_id))

    def add_broker(self, *, settings: Mapping[str, str] | None = None, rack: str | None = None) -> int:
        """Start one more broker and return its number."""
        number = max(self.broker_ids) + 1
        own = {**(settings or {}), **({} if rack is None else {"broker.rack": rack})}
        self.settings_of[number] = {**self.settings_of.get(number, {}), **own}
        self.broker_ids = (*self.broker_ids, number)
        self._add(number)
        self.start(number)
        return number

    def wipe(self, broker_id: int) -> None:
        """Remove the data of a broker that is down, as a new disk would."""
        if self.running(broker_id):
            raise RuntimeError(f"broker {broker_id} runs: stop or kill it first")
        shutil.rmtree(self.data_directory_of(broker_id), ignore_errors=True)

    def close(self) -> None:
        """End everything at once, and remove the data folder if it is our own temporary one."""
        self.kill()
        for reserved in self._ports.values():
            reserved.close()
        if self._owns_data:
            shutil.rmtree(self.data_directory, ignore_errors=True)

    # What the brokers say

    def view(self, broker_id: int | None = None) -> ClusterView:
        """The cluster as this broker sees it, or the first that answers; raises NoView if none does."""
        asked = self.responsive_ids if broker_id is None else (broker_id,)
        fault = NoView("no broker runs")
        for number in asked:
            try:
                return ask(self.address(number), timeout_seconds=ASK_SECONDS_MAX)
            except NoView as refused:
                fault = refused
        raise fault

    def controller(self) -> int | None:
        """The number of the controller, or None while there is none."""
        try:
            found = self.view().controller_id
        except NoView:
            return None
        return found if found >= 0 else None

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Leader, replicas and ISR of a partition; LookupError if it is not known."""
        return self.view().partition(topic, partition)

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, -1 if none does."""
        return self.partition(topic, partition).leader

    def wait_known(
        self, broker_ids: Iterable[int] | None = None, timeout_seconds: float = VIEW_SECONDS_MAX
    ) -> None:
        """Return when every broker that runs knows the running ones among `broker_ids` (default: all)."""
        wanted = set(self.broker_ids if broker_ids is None else broker_ids)

        def known() -> str | None:
            running = wanted & set(self.responsive_ids)
            for number in self.responsive_ids:
                missing = running - set(self.view(number).addresses)
                if missing:
                    return f"broker {number} does not know {sorted(missing)}"
            return None

        self._wait(known, timeout_seconds)

    def wait_in_sync(
        self, topics: Iterable[str] | None = None, timeout_seconds: float = IN_SYNC_SECONDS_MAX
    ) -> None:
        """Return when every partition of the topics (default: all) has a leader and a full ISR."""
        wanted = None if topics is None else set(topics)

        def whole() -> str | None:
            view = self.view()
            if wanted is not None and (
                unknown := wanted - {partition.topic for partition in view.partitions}
            ):
                return f"topic {min(unknown)} is not known"
            lagging = [item for item in view.out_of_sync if wanted is None or item.topic in wanted]
            return f"{len(lagging)} partitions are not whole, such as {lagging[0]}" if lagging else None

        self._wait(whole, timeout_seconds)

    def wait_controller(
        self, other_than: int | None = None, timeout_seconds: float = VIEW_SECONDS_MAX
    ) -> int:
        """Return the controller when there is one that is not `other_than`."""
        found: list[int] = []

        def changed() -> str | None:
            controller = self.controller()
            if controller is None or controller == other_than:
                return f"the controller is {controller}"
            found.append(controller)
            return None

        self._wait(changed, timeout_seconds)
        return found[-1]

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **configs: Any
    ) -> str:
        """Create a topic and return its name once its ISRs are full; `retention_ms=1` sets retention.ms."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        replicas = replication_factor or min(len(self.broker_ids), local_cluster.REPLICAS_MAX)
        texts = {
            setting.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for setting, value in configs.items()
        }
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=texts)
        futures = admin.create_topics([wanted], request_timeout=TOPIC_SECONDS_MAX)
        futures[name].result(timeout=TOPIC_SECONDS_MAX)
        self.wait_in_sync([name], TOPIC_SECONDS_MAX)
        return name

    def tracebacks(self) -> list[str]:
        """Every traceback in the brokers' logs, for a test to find none."""
        found = []
        for number in self.broker_ids:
            for piece in self.log_text(number).split("Traceback (most recent call last):")[1:]:
                lines = piece.strip("\n").splitlines()
                ends = (i for i, line in enumerate(lines) if line and not line.startswith(" "))
                found.append(f"broker {number}:\n" + "\n".join(lines[: next(ends, len(lines) - 1) + 1]))
        return found

    def _chosen(self, broker_id: int | None) -> tuple[int, ...]:
        if broker_id is None:
            return self.broker_ids
        if broker_id not in self._processes:
            raise ValueError(f"there is no broker {broker_id} among {self.broker_ids}")
        return (broker_id,)

    def _add(self, number: int) -> None:
        self._ports[number] = reserved = ReservedPort()
        settings = local_cluster.broker_settings(
            self.settings,
            data=self.data_directory,
            broker_id=number,
            listeners=f"PLAINTEXT://127.0.0.1:{reserved.port}",
            rack=self.racks[number - 1] if number <= len(self.racks) else None,
        )
        self._processes[number] = BrokerProcess(
            {**settings, **self.settings_of.get(number, {})},
            log=self.log_path(number),
            log_level=self.log_level,
            command_prefix=() if self._command_prefix is None else self._command_prefix(number),
            environment=self._environment,
        )

    def _reap(self, number: int) -> None:
        """A broker that ended by itself still has to be waited for before its next life."""
        if self._processes[number].process_id is not None:
            self._processes[number].reap(KILL_SECONDS_MAX)
        self._paused.discard(number)

    def _signal_running(self, broker_id: int | None, number: signal.Signals) -> None:
        for chosen in self._chosen(broker_id):
            if not self.running(chosen):
                raise RuntimeError(f"broker {chosen} does not run")
            self._processes[chosen].signal(number)

    def _wait(self, missing: Callable[[], str | None], timeout_seconds: float) -> None:
        """Poll until nothing is missing; what the last answer was is in the error."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                reason = missing()
            except NoView as fault:
                reason = str(fault)
            if reason is None:
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"after {timeout_seconds:g} s: {reason}; {self!r}")
            time.sleep(POLL_SECONDS)


__all__ = ["BrokerNotStarted", "NoView", "RunningCluster"]

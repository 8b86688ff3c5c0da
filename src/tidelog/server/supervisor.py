"""Several brokers on this machine, kept running by one process that does nothing else.

`Supervisor.run` launches them side by side and then waits for signals and ends:

- a broker that dies is started again as `RestartPolicy` says; one that ended with exit code 0 was stopped on
  purpose (SIGTERM) and stays down;
- the first SIGINT or SIGTERM stops all of them cleanly, one after the other so that leadership can move, the
  controller last; the second kills them;
- SIGUSR1 asks for a rolling restart: brokers that are down are started, then each in turn, the controller
  last, is stopped, started and waited for until every replica is in sync again.

What happens is reported as `Event` values, and the present state is in `cluster.json` of the data folder,
replaced as a whole at every change, for other processes to read. `cluster.lock` is held throughout.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tidelog.server import local_cluster
from tidelog.server.broker_process import BrokerNotStarted, BrokerProcess
from tidelog.server.cluster_view import ClusterView, NoView, ask
from tidelog.server.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from tidelog.client.client_settings import ClientSettings

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
REAP_SECONDS_MAX = 10.0
IN_SYNC_SECONDS_MAX = 120.0
ASK_SECONDS_MAX = 1.0
TASK_TICK_SECONDS = 0.02
VIEW_TICK_SECONDS = 0.1
EXIT_KILLED = 130

Task = Iterator[float]
"""Something under way; each step says after how many seconds to look again, events aside."""


class BrokerState(StrEnum):
    """Where a broker is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # it died and will be started again
    STOPPING = "stopping"
    STOPPED = "stopped"  # on purpose
    FAILED = "failed"  # given up


UP_STATES = (BrokerState.STARTING, BrokerState.READY, BrokerState.STOPPING)


class SupervisorRefused(RuntimeError):
    """The cluster was not started; the message says why, `remedy` what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """Something a person should hear about."""

    kind: str
    message: str
    broker_id: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        broker = {} if self.broker_id is None else {"broker": self.broker_id}
        return {"event": self.kind, **broker, "message": self.message, **self.details}


@dataclass(slots=True)
class BrokerLife:
    """One broker over all its lives."""

    process: BrokerProcess
    address: str
    state: BrokerState = BrokerState.STARTING
    ready_at: float | None = None
    start_at: float = 0.0
    failures: int = 0
    restarts: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.process.broker_id,
            "state": str(self.state),
            "address": self.address,
            "pid": self.process.process_id,
            "restarts": self.restarts,
            "exit_code": self.process.exit_code,
            "data": self.process.settings["log.dirs"],
            "log": str(self.process.log),
        }


class Supervisor:
    """Runs `processes` (each with node.id, listeners and a log file) until it is told to stop."""

    def __init__(
        self,
        processes: Sequence[BrokerProcess],
        *,
        data: Path,
        report: Callable[[SupervisorEvent], None],
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        security: "ClientSettings | None" = None,
    ) -> None:
        """`security` is how brokers are asked that do not speak to everybody."""
        self._security = security
        self._lives = {
            process.broker_id: BrokerLife(process, _address(process.settings)) for process in processes
        }
        self._data = data
        self._report = report
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._stop_signals = 0
        self._roll_wanted = False
        self._all_were_ready = False
        self._task: Task | None = None
        self._task_name = ""
        self._look_again_at = 0.0
        self._last_roll: dict[str, Any] | None = None

    def run(self) -> int:
        """Start, supervise, stop; the exit code. Raises SupervisorRefused when the cluster does not start."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(held_lock(self._data / local_cluster.LOCK_NAME))
            stack.callback(self._selector.close)
            stack.enter_context(self._signals())
            stack.callback(self._kill_all)
            begun = self._clock()
            for life in self._lives.values():
                self._launch(life)
            self._start_task("start", self._starting(begun))
            while True:
                self._wait()
                if self._stop_signals > 1:
                    self._report(SupervisorEvent("killed", "Killed."))
                    return EXIT_KILLED
                self._notice_ends()
                self._start_due()
                if self._stop_signals == 1 and self._task_name != "stop":
                    self._report(SupervisorEvent("stopping", "Stopping the brokers; once more kills them."))
                    self._start_task("stop", self._stopping())
                elif self._roll_wanted and self._task is None:
                    self._roll_wanted = False
                    self._start_task("roll", self._rolling())
                self._step_task()
                if self._task is None and all(life.state not in UP_STATES for life in self._lives.values()):
                    if any(life.state is BrokerState.WAITING for life in self._lives.values()):
                        continue
                    return self._ended()

    # Events of the operating system

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into wake-ups of the selector and notes of what they asked for."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stop_signals += 1

        def roll(number: int, frame: FrameType | None) -> None:
            self._roll_wanted = True

        def ignore(number: int, frame: FrameType | None) -> None:
            return

        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGUSR1: roll, signal.SIGCHLD: ignore}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            reading.close()
            writing.close()

    def _wait(self) -> None:
        now = self._clock()
        due = [life.start_at for life in self._lives.values() if life.state is BrokerState.WAITING]
        if self._task is not None:
            due.append(self._look_again_at)
        timeout_seconds = max(0.0, min(due) - now) if due else None
        for key, _ in self._selector.select(timeout_seconds):
            if isinstance(key.data, BrokerLife):
                self._hear(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)

    def _hear(self, life: BrokerLife) -> None:
        """A broker said that it is ready, or its pipe ended (its end itself is noticed elsewhere)."""
        try:
            ready = life.process.poll_ready()
        except BrokerNotStarted:
            self._selector.unregister(life.process.ready_descriptor)
            return
        if ready is not None and life.state is BrokerState.STARTING:
            life.state = BrokerState.READY
            life.ready_at = self._clock()
            life.address = ready.bootstrap
            self._selector.unregister(life.process.ready_descriptor)
            if self._all_were_ready:
                broker_id = life.process.broker_id
                self._report(SupervisorEvent("ready", f"ready at {life.address}", broker_id, life.as_json()))
            self._write_state()

    def _notice_ends(self) -> None:
        for life in self._lives.values():
            if life.state in UP_STATES and not life.process.running:
                self._end(life)

    # One broker's life

    def _launch(self, life: BrokerLife) -> None:
        life.state = BrokerState.STARTING
        life.ready_at = None
        life.process.launch()
        self._selector.register(life.process.ready_descriptor, selectors.EVENT_READ, life)
        self._write_state()

    def _start_due(self) -> None:
        now = self._clock()
        for life in self._lives.values():
            if life.state is BrokerState.WAITING and life.start_at <= now:
                life.restarts += 1
                self._launch(life)

    def _end(self, life: BrokerLife) -> None:
        """Reap a broker that ended and decide what becomes of it."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(life.process.ready_descriptor)
        code = life.process.reap(REAP_SECONDS_MAX)
        broker_id = life.process.broker_id
        if life.state is BrokerState.STOPPING or (code == 0 and life.ready_at is not None):
            asked = life.state is BrokerState.STOPPING
            life.state = BrokerState.STOPPED
            again = "" if asked else "; 'tidelog cluster roll' starts it again"
            self._report(SupervisorEvent("stopped", f"stopped{again}", broker_id, {"exit_code": code}))
        elif self._task_name == "stop":
            # It died while the others were being stopped: there is nothing to start it again for.
            life.state = BrokerState.STOPPED
            self._report(
                SupervisorEvent("died", f"{exit_text(code)} while stopping", broker_id, {"exit_code": code})
            )
        elif not self._all_were_ready:
            life.state = BrokerState.FAILED
        else:
            self._decide_restart(life, code)
        self._write_state()

    def _decide_restart(self, life: BrokerLife, code: int) -> None:
        now = self._clock()
        served_seconds = 0.0 if life.ready_at is None else now - life.ready_at
        life.failures, delay_seconds = self._policy.after_end(life.failures, served_seconds)
        ended = f"{exit_text(code)} after {served_seconds:.1f} s"
        details = {"exit_code": code, "failures": life.failures, "log": str(life.process.log)}
        if delay_seconds is None:
            life.state = BrokerState.FAILED
            message = (
                f"{ended}, the {life.failures}. failure in a row: given up\n"
                f"{_last_lines(life.process)}\n  the whole log is {life.process.log}"
            )
            self._report(SupervisorEvent("failed", message, life.process.broker_id, details))
            return
        life.state = BrokerState.WAITING
        life.start_at = now + delay_seconds
        when = "at once" if delay_seconds == 0 else f"in {delay_seconds:g} s"
        message = f"{ended}; starting it again {when} (log: {life.process.log})"
        self._report(SupervisorEvent("died", message, life.process.broker_id, details))

    # Tasks: starting, stopping, rolling

    def _start_task(self, name: str, task: Task) -> None:
        self._task = task
        self._task_name = name
        self._look_again_at = self._clock()

    def _step_task(self) -> None:
        if self._task is None:
            return
        try:
            self._look_again_at = self._clock() + next(self._task)
        except StopIteration:
            self._task = None
            self._task_name = ""
            self._write_state()

    def _starting(self, begun: float) -> Task:
        while any(life.state is not BrokerState.READY for life in self._lives.values()):
            for life in self._lives.values():
                if life.state is BrokerState.FAILED:
                    raise SupervisorRefused(
                        f"broker {life.process.broker_id} did not start\n{_last_lines(life.process)}",
                        f"what its log says; all of it is in {life.process.log}",
                    )
            if self._clock() - begun > START_SECONDS_MAX:
                waiting_for = [
                    life.process for life in self._lives.values() if life.state is not BrokerState.READY
                ]
                raise SupervisorRefused(
                    f"the brokers were not ready within {START_SECONDS_MAX:g} s",
                    f"look into {', '.join(str(process.log) for process in waiting_for)}",
                )
            yield TASK_TICK_SECONDS
        # A client that asks the first broker should hear of all of them.
        while (waiting := self._clock() - begun) < START_SECONDS_MAX:
            views = [self._view(life) for life in self._lives.values()]
            if all(view is not None and set(self._lives) <= set(view.addresses) for view in views):
                break
            yield TASK_TICK_SECONDS
        self._all_were_ready = True
        details = {
            "bootstrap": self.bootstrap,
            "elapsed_ms": round(waiting * 1000),
            "brokers": [life.as_json() for life in self._lives.values()],
        }
        self._report(SupervisorEvent("cluster_ready", f"ready at {self.bootstrap}", None, details))

    def _stopping(self) -> Task:
        for life in self._lives.values():
            if life.state is BrokerState.WAITING:
                life.state = BrokerState.STOPPED
        for life in self._controller_last():
            if life.state in UP_STATES:
                yield from self._stop_one(life)
        self._report(SupervisorEvent("cluster_stopped", "The cluster stopped cleanly."))

    def _stop_one(self, life: BrokerLife) -> Task:
        life.state = BrokerState.STOPPING
        life.process.signal(signal.SIGTERM)
        life.process.signal(signal.SIGCONT)
        self._write_state()
        deadline = self._clock() + STOP_SECONDS_MAX
        while life.state is BrokerState.STOPPING:
            if self._clock() > deadline:
                message = f"did not stop within {STOP_SECONDS_MAX:g} s: killed"
                self._report(SupervisorEvent("killed", message, life.process.broker_id))
                life.process.signal(signal.SIGKILL)
                deadline = self._clock() + REAP_SECONDS_MAX
            yield TASK_TICK_SECONDS

    def _rolling(self) -> Task:
        """Restart every broker in turn; the ISRs are whole before each next one goes down."""
        number = 1 if self._last_roll is None else self._last_roll["number"] + 1
        self._last_roll = {"number": number, "state": "running", "done": [], "reason": None}
        for life in self._lives.values():
            if life.state in (BrokerState.STOPPED, BrokerState.FAILED):
                life.failures = 0
                self._launch(life)
        for life in self._controller_last():
            broker_id = life.process.broker_id
            fault = yield from self._wait_whole()
            if fault is None:
                self._report(SupervisorEvent("rolling", "restarting", broker_id))
                yield from self._stop_one(life)
                life.restarts += 1
                self._launch(life)
                fault = yield from self._wait_whole()
            if fault is not None:
                self._last_roll |= {"state": "failed", "reason": fault}
                self._report(
                    SupervisorEvent("roll_failed", f"The rolling restart was given up: {fault}", broker_id)
                )
                return
            self._last_roll["done"] = [*self._last_roll["done"], broker_id]
            self._write_state()
        self._last_roll["state"] = "done"
        self._report(SupervisorEvent("rolled", "Every broker was restarted and every replica is in sync."))

    def _wait_whole(self) -> Generator[float, None, str | None]:
        """Wait until every broker is ready and every replica in sync; the reason if that did not come."""
        deadline = self._clock() + IN_SYNC_SECONDS_MAX
        while True:
            reason = self._not_whole()
            if reason is None or self._clock() > deadline:
                return reason
            yield VIEW_TICK_SECONDS

    def _not_whole(self) -> str | None:
        for life in self._lives.values():
            if life.state is not BrokerState.READY:
                return f"broker {life.process.broker_id} is {life.state}"
        for life in self._lives.values():
            view = self._view(life)
            if view is None:
                return f"broker {life.process.broker_id} does not answer"
            if not set(self._lives) <= set(view.addresses):
                return f"broker {life.process.broker_id} does not know all the others"
            if view.out_of_sync:
                first = view.out_of_sync[0]
                return (
                    f"{len(view.out_of_sync)} partitions are not whole, such as {first.topic}-"
                    f"{first.partition} with ISR {list(first.isr)} of {list(first.replicas)}"
                )
        return None

    # What others may know

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(life.address for life in self._lives.values())

    def _view(self, life: BrokerLife) -> ClusterView | None:
        if life.state is not BrokerState.READY:
            return None
        try:
            return ask(life.address, timeout_seconds=ASK_SECONDS_MAX, security=self._security)
        except NoView:
            return None

    def _controller_last(self) -> list[BrokerLife]:
        controller = -1
        for life in self._lives.values():
            view = self._view(life)
            if view is not None:
                controller = view.controller_id
                break
        return sorted(self._lives.values(), key=lambda life: life.process.broker_id == controller)

    def _write_state(self) -> None:
        state = {
            "pid": os.getpid(),
            "bootstrap": self.bootstrap,
            "ready": self._all_were_ready,
            "doing": self._task_name or None,
            "roll": self._last_roll,
            "brokers": [life.as_json() for life in self._lives.values()],
        }
        path = self._data / local_cluster.STATE_NAME
        temporary = path.with_suffix(".json.new")
        temporary.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)

    def _ended(self) -> int:
        if any(life.state is BrokerState.FAILED for life in self._lives.values()):
            self._report(
                SupervisorEvent(
                    "cluster_failed", "No broker runs any more, and not all were stopped on purpose."
                )
            )
            return 1
        return 0

    def _kill_all(self) -> None:
        """Whatever happened, leave no broker behind."""
        for life in self._lives.values():
            life.process.signal(signal.SIGKILL)
        for life in self._lives.values():
            life.process.kill(REAP_SECONDS_MAX)
            if life.state in (*UP_STATES, BrokerState.WAITING):
                life.state = BrokerState.STOPPED
        self._write_state()


@contextlib.contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, or refuse because another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SupervisorRefused(
                f"another cluster runs in {path.parent}", "stop it, or choose another folder with --data"
            ) from None
        yield
    finally:
        os.close(descriptor)


def read_state(data: Path) -> dict[str, Any] | None:
    """What the supervisor of this data folder says, or None when none runs."""
    if not (data / local_cluster.LOCK_NAME).exists():
        return None
    try:
        with held_lock(data / local_cluster.LOCK_NAME):
            return None
    except SupervisorRefused:
        state = json.loads((data / local_cluster.STATE_NAME).read_text(encoding="utf-8"))
        assert isinstance(state, dict)
        return state


def exit_text(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _address(settings: dict[str, str]) -> str:
    return settings["listeners"].partition("://")[2]


def _last_lines(process: BrokerProcess, count: int = 5) -> str:
    lines = process.log_tail().rstrip().splitlines()[-count:]
    return "\n".join(f"  | {line}" for line in lines)

"""Consumers in processes of their own, that can be killed and paused as those of an application can.

    consumer = lab.start_consumer("anna", group="billing", topics=["orders"])
    consumer.wait_assigned(2)
    consumer.wait_records(10)
    consumer.kill()

What a consumer tells is kept in `records`, `commits`, `assignment` and `history`, and goes to the lab's event
stream. Every wait has a bound.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.lab.events import EventStream
from tidelog.server.broker_process import in_lasting_thread

WAIT_SECONDS = 30.0
END_SECONDS_MAX = 10.0


class Seen(NamedTuple):
    """A record that a consumer processed."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    at: float


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """How a consumer works: `topics` with a group, or `partitions` (topic, number, offset) without.

    `commit` is `auto` (the client does it), `after` or `before` the processing of each record (or of every
    `commit_every`), or `none`. `work_ms` is how long the processing of a record takes. `crash_at` is the
    number of the record (from 1) at which it dies between processing and commit, whichever comes first.
    """

    config: Mapping[str, Any]
    topics: Sequence[str] = ()
    partitions: Sequence[tuple[str, int, int]] | None = None
    commit: str = "after"
    commit_every: int = 1
    work_ms: float = 0
    crash_at: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "config": dict(self.config),
            "topics": list(self.topics),
            "partitions": None if self.partitions is None else [list(place) for place in self.partitions],
            "commit": self.commit,
            "commit_every": self.commit_every,
            "work_ms": self.work_ms,
            "crash_at": self.crash_at,
        }


@dataclass(slots=True)
class _Told:
    """What a consumer told so far."""

    assignment: set[tuple[str, int]] = field(default_factory=set)
    assigned_times: int = 0
    records: list[Seen] = field(default_factory=list)
    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


class ConsumerProcess:
    """A consumer from its start to its end."""

    def __init__(self, name: str, plan: ConsumerPlan, events: EventStream) -> None:
        self.name = name
        self.plan = plan
        self.group = str(plan.config.get("group.id", ""))
        self._events = events
        self._told = _Told()
        self._changed = threading.Condition()
        self._paused = False
        self._process = self._launch()
        self._reader = threading.Thread(target=self._read, name=f"lab-consumer-{name}", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<ConsumerProcess {self.name} {self.state} {len(self._told.records)} records>"

    def _launch(self) -> "subprocess.Popen[bytes]":
        package_root = str(Path(__file__).resolve().parents[2])
        python_path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": python_path}

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-m", "tidelog.lab.child_consumer", self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )

        process = in_lasting_thread(start)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self.plan.as_json()).encode() + b"\n")
            process.stdin.flush()
        return process

    # What it told

    @property
    def state(self) -> str:
        """`running`, `paused` or `down`."""
        if self._process.poll() is not None:
            return "down"
        return "paused" if self._paused else "running"

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions it has, in order."""
        with self._changed:
            return sorted(self._told.assignment)

    @property
    def assigned_times(self) -> int:
        """How often its group gave it something."""
        return self._told.assigned_times

    @property
    def records(self) -> list[Seen]:
        """Every record it processed, in order."""
        with self._changed:
            return list(self._told.records)

    @property
    def commits(self) -> dict[tuple[str, int], int]:
        """The offset it committed last, by partition."""
        with self._changed:
            return dict(self._told.commits)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Everything it told, as it told it."""
        with self._changed:
            return list(self._told.history)

    # Waiting

    def wait(self, ready: "Callable[[ConsumerProcess], bool]", timeout_seconds: float = WAIT_SECONDS) -> bool:
        """Wait until `ready(consumer)` is true; False when the time is over or it ended."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if ready(self):
                return True
            with self._changed:
                self._changed.wait(0.05)
            if self._process.poll() is not None and not self._reader.is_alive():
                return ready(self)
        return ready(self)

    def wait_assigned(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it has exactly so many partitions."""
        return self.wait(lambda consumer: len(consumer.assignment) == count, timeout_seconds)

    def wait_records(self, count: int, timeout_seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it processed so many records."""
        return self.wait(lambda consumer: len(consumer.records) >= count, timeout_seconds)

    def wait_ended(self, timeout_seconds: float = WAIT_SECONDS) -> bool:
        """Wait until the process is gone and everything it told was read."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)
        self._reader.join(END_SECONDS_MAX)
        return self._process.poll() is not None

    # Ending and pausing

    def kill(self) -> None:
        """SIGKILL: it leaves without a word."""
        self._process.kill()
        self.wait_ended(END_SECONDS_MAX)

    def stop(self) -> None:
        """SIGTERM: it leaves its group, then ends; killed if that takes long."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        if not self.wait_ended(END_SECONDS_MAX):
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: no heartbeats, no answers."""
        self._process.send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """Kill it and give back what it held."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    # Reading what it tells

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                text = self._note(told)
                self._changed.notify_all()
            fields = {name: value for name, value in told.items() if name not in ("kind", "at", "text")}
            self._events.emit(
                f"consumer-{told['kind']}", text, consumer=self.name, group=self.group, **fields
            )

    def _note(self, told: dict[str, Any]) -> str:
        """Keep it, and say it in a sentence."""
        self._told.history.append(told)
        kind = told["kind"]
        if kind == "record":
            seen = Seen(*(told[name] for name in Seen._fields))
            self._told.records.append(seen)
            return f"{self.name} read {seen.topic}-{seen.partition} at {seen.offset}: {seen.value}"
        if kind == "committed":
            place = (str(told["topic"]), int(told["partition"]))
            self._told.commits[place] = told["offset"]
            return f"{self.name} committed {place[0]}-{place[1]} at {told['offset']}"
        if kind in ("assigned", "revoked", "lost"):
            places = {(str(topic), int(partition)) for topic, partition in told["partitions"]}
            if kind == "assigned":
                self._told.assignment |= places
                self._told.assigned_times += 1
            else:
                self._told.assignment -= places
            shown = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places)) or "nothing"
            return f"{self.name} {kind} {shown}"
        return f"{self.name} {kind} {told.get('text', '')}".rstrip()

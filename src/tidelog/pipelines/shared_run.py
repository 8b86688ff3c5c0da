"""A run that its team sees, stops and takes over: its lease, in the topic of `admin.shared_pipelines`.

    with SharedRun(run, folder, starting) as shared:        # raises AlreadyRunning, OtherMachine
        shared.tell(status)                       # with every report
        shared.stop_asked(), shared.taken_over()

A pipeline has one transactional id. To start is to take it, which fences whoever had it: the broker refuses
the record that the run before wants to write next, and that run stops. Nobody takes it from a run that is
alive: one that said so is listened to for its lease first, unless it was of this very place, whose lock is
ours by now. No clocks are compared for that.

A run that cannot reach the cluster goes on trying; what it wrote exactly once is safe whoever has the lease,
for the sink fences by itself (docs/adr/0012).
"""

import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tidelog.admin.shared_pipelines import PLACE, TOPIC, TOPIC_CONFIGS, SharedPipeline, SharedPipelines
from tidelog.client.client_settings import READ_UNCOMMITTED
from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption, ClientFault, Refusal
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.transactional_writer import Producer, TransactionalWriter, init_producer
from tidelog.model.errors import ErrorCode
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.running import AlreadyRunning
from tidelog.pipelines.target_topics import client_settings, create_topics
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
#: several to a lease: one that is late is not the end
BEATS_PER_LEASE = 5
POLL_SECONDS = 0.5
PATIENCE_MS = 10_000
TRANSACTION_MS = 30_000
_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class OtherMachine(BadOption):
    """The progress of the pipeline is on another machine."""


class TakenOver(ClientFault):
    """Somebody else runs the pipeline now."""


def transactional_id(name: str) -> str:
    """Under the prefix of the sink's, so one rule allows both."""
    return f"tidelog-spark-pipelines.{name}"


def is_of_one_machine(path: str) -> bool:
    """Whether a path is one of whoever looks, as far as its name says."""
    return "://" not in path or path.startswith("file:")


class SharedRun:
    """The lease of one run, from `__enter__` to `__exit__`."""

    def __init__(
        self,
        run: RunSettings,
        folder: Path,
        status: Mapping[str, Any],
        *,
        host: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        on_waiting: Callable[[SharedPipeline], None] = lambda before: None,
    ) -> None:
        self._run = run
        self._id = uuid.uuid4().hex
        self._place = f"{host or socket.gethostname()}:{folder}"
        self._lease_seconds = lease_seconds
        self._on_waiting = on_waiting
        settings = replace(client_settings(run.kafka), isolation_level=READ_UNCOMMITTED)
        self._cluster = Cluster(replace(settings, api_timeout_ms=PATIENCE_MS))
        self._board = SharedPipelines(self._cluster)
        self._producer: Producer | None = None
        self._sequence = 0
        self._status = status
        self._ended = threading.Event()
        self._told = threading.Event()
        self._stop_asked = False
        self._taken_over: str | None = None
        self._beats = threading.Thread(target=self._beat, name="shared-run", daemon=True)

    def __repr__(self) -> str:
        return f"<SharedRun {self._run.name} {self._id} at {self._place}>"

    def __enter__(self) -> "SharedRun":
        try:
            self._claim()
        except BaseException:
            self._cluster.close()
            raise
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._told.set()
        self._beats.join(2 * PATIENCE_MS / 1000)
        self._cluster.close()

    def tell(self, status: Mapping[str, Any]) -> None:
        """How it is; written soon, and the last one before the lease is given back."""
        self._status = status
        self._told.set()

    def stop_asked(self) -> bool:
        return self._stop_asked

    def taken_over(self) -> str | None:
        """Where it runs now, if somebody has taken it over."""
        return self._taken_over

    # The claim

    def _claim(self) -> None:
        if TOPIC not in self._cluster.topics([TOPIC]):
            create_topics(self._cluster, {TOPIC: 1}, TOPIC_CONFIGS)
            self._cluster.topic(TOPIC)
        self._board.refresh()
        before = self._board.pipelines.get(self._run.name)
        if before is not None:
            self._check_progress(before)
            if before.is_alive and before.place != self._place:
                self._listen_to(before)
        self._producer = init_producer(self._cluster, transactional_id(self._run.name), TRANSACTION_MS)
        self._write()

    def _check_progress(self, before: SharedPipeline) -> None:
        """A checkpoint that is not here would be begun anew, and everything written twice."""
        ours = self._run.checkpoint
        if before.place == self._place or before.checkpoint != ours or not is_of_one_machine(ours):
            return
        if not Path(ours.removeprefix("file://")).exists():
            raise OtherMachine(
                f"pipeline {self._run.name} has its progress in {ours} on {before.host}, which is not here. "
                "Start it there; for any machine, name a checkpoint that all reach (hdfs://…, s3a://…, a "
                "shared folder); or begin anew with another --checkpoint"
            )

    def _listen_to(self, before: SharedPipeline) -> None:
        self._on_waiting(before)
        deadline = time.monotonic() + before.lease_seconds
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._board.refresh()
            now = self._board.pipelines.get(before.name)
            if now is None or not now.is_alive:
                return
            if now.offset != before.offset:
                raise AlreadyRunning(
                    f"pipeline {before.name} is running on {now.host}; "
                    f"'tidelog pipeline stop {before.name} --shared' stops it from anywhere"
                )
        log.warning(
            "%s on %s was silent for %g s: taken over", before.name, before.host, before.lease_seconds
        )

    # The beats

    def _beat(self) -> None:
        while self._taken_over is None:
            self._told.wait(self._lease_seconds / BEATS_PER_LEASE)
            self._told.clear()
            is_last = self._ended.is_set()
            try:
                self._beat_once()
            except ClientFault as fault:
                log.warning("how %s is was not told: %s", self._run.name, fault)
            if is_last:
                return

    def _beat_once(self) -> None:
        try:
            self._write()
        except Refusal as refusal:
            if refusal.code not in _FENCED:
                raise
            self._fenced()
        self._board.refresh()
        self._stop_asked = self._board.is_asked_to_stop(self._run.name, self._id)

    def _write(self) -> None:
        assert self._producer is not None
        document = {
            "run": self._id,
            "place": self._place,
            "lease_seconds": self._lease_seconds,
            "checkpoint": self._run.checkpoint,
            "status": self._status,
        }
        value = json.dumps(document).encode()
        record = Record(0, int(time.time() * 1000), self._run.name.encode(), value)
        batch = build_batch(
            [record],
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.producer_epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        writer = TransactionalWriter(self._cluster, self._producer, delivery_timeout_ms=PATIENCE_MS)
        writer.send([BatchToSend(*PLACE, batch)])
        # A record that may have arrived is not sent under another number: the broker knows it by this one.
        self._sequence += 1
        writer.end(committed=True)

    def _fenced(self) -> None:
        """Somebody has our id, or the broker has given up on a transaction that took too long.

        Who takes the id says so at once; a run that finds nobody's word but its own takes it again.
        """
        if not self._is_replaced():
            self._producer = init_producer(self._cluster, transactional_id(self._run.name), TRANSACTION_MS)
            self._sequence = 0
            self._is_replaced()

    def _is_replaced(self) -> bool:
        self._board.refresh()
        now = self._board.pipelines.get(self._run.name)
        if now is not None and now.run != self._id:
            self._taken_over = now.host
        return self._taken_over is not None

"""Replicas that move between the log directories of this broker (AlterReplicaLogDirs).

A move copies the log into the other directory while the log goes on (`storage.future_log`): a piece at a
time, between other work, no faster than `replica.alter.log.dirs.io.max.bytes.per.second`. When the copy has
caught up it is flushed in the background, and the cluster is told that the replica is in the other directory
from now on. When it knows, the copy catches up once more and takes the log's place between two appends; what
is left to sync then is little. A move that is given up after the cluster was told takes its word back first:
until then the copy stays, as a sign that it is not the log. If the directory of the log fails in between, the
cluster is told that the replica is lost. A replica that leaves the broker takes its copy with it. A start
begins unfinished moves again, from their beginning.

The files are the business of `log_copies`, the word to the cluster that of `placements`. Whoever opens and
gives up replicas (`replication`), and takes directories offline (`directory_failures`), tells the moves.
"""

import logging
from functools import partial

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.disk_faults import DiskFaults
from tidelog.broker.replication.log_copies import LogCopies
from tidelog.broker.replication.placements import Placements
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.future_log import FutureLog
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import LogDirectory

log = logging.getLogger(__name__)

#: when to look again after something was in the way
RETRY_MS = 10


class _Move:
    """One replica on its way."""

    __slots__ = ("announced", "directory", "flushed", "future", "known", "partition")

    def __init__(self, partition: Partition, directory: LogDirectory, future: FutureLog) -> None:
        self.partition = partition
        self.directory = directory
        self.future = future
        #: whether the copy was flushed once after it had caught up
        self.flushed = False
        #: whether the cluster is being told, and whether it knows
        self.announced = False
        self.known = False


class LogMoves:
    """The moves of one broker."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        log_directories: LogDirectories,
        copies: LogCopies,
        placements: Placements,
        disk_faults: DiskFaults,
        settings: LiveSettings,
        background: Background,
        timers: Timers,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._log_directories = log_directories
        self._copies = copies
        self._placements = placements
        self._disk_faults = disk_faults
        self._settings = settings
        self._background = background
        self._timers = timers
        self._moves: dict[TopicPartition, _Move] = {}
        #: moves given up after the cluster was told: where the replica shall go instead, if anywhere
        self._taken_back: dict[TopicPartition, LogDirectory | None] = {}
        #: the directory in which the cluster believes a replica, or is about to, that is not there yet
        self.announced: dict[TopicPartition, str] = {}

    def __repr__(self) -> str:
        return f"<LogMoves {', '.join(map(str, self._moves))}>"

    @property
    def futures(self) -> dict[TopicPartition, FutureLog]:
        """The copies under way."""
        return {place: move.future for place, move in self._moves.items()}

    def resume(self) -> None:
        """At start, when the cluster knows where every replica is: begin again what was not finished."""
        for place, directory, folder in self._log_directories.future_folders():
            self._copies.remove(folder)
            partition = None if place is None else self._replicas.replica(*place)
            if place is not None and partition is not None:
                self._copies.remove_note(partition)
                self.move(place, directory.path)

    def move(self, place: TopicPartition, path: str) -> ErrorCode:
        """Begin to move a replica to the directory; NONE when it is under way, or there already."""
        directories = self._log_directories
        directory = directories.directory_at(path)
        if directory is None:
            offline = any(each.path == path.rstrip("/") for each in directories.offline)
            return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.LOG_DIR_NOT_FOUND
        partition = self._replicas.replica(*place)
        if partition is None:
            if self._metadata.image.partition(*place) is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            # Kafka's answer as well: the wish is kept for when the replica comes.
            directories.preferred[place] = directory
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if place in self._taken_back:
            self._taken_back[place] = directory
            return ErrorCode.NONE
        running = self._moves.get(place)
        if running is not None:
            if running.directory is directory:
                return ErrorCode.NONE
            self._abandon(place, running, directory)
            if place in self._taken_back:
                return ErrorCode.NONE
        if directories.directory_of(place) is directory:
            return ErrorCode.NONE
        try:
            future = self._copies.begin(partition, directory)
        except OSError as fault:
            log.error("%s cannot be moved to %s: %s", partition, path, fault)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._moves[place] = move = _Move(partition, directory, future)
        self._step_later(place, move, 0)
        return ErrorCode.NONE

    def opened(self, place: TopicPartition) -> None:
        """A log was opened: move it if somebody wished it elsewhere before it came."""
        preferred = self._log_directories.preferred.pop(place, None)
        if preferred is not None:
            self.move(place, preferred.path)

    def left(self, partition: Partition) -> None:
        """A replica has left the broker: its move is over."""
        place = partition.place
        move = self._moves.get(place)
        if move is not None:
            self._abandon(place, move)
        elif place in self._taken_back:
            del self._taken_back[place]
            self._placements.forget(place)
        self.announced.pop(place, None)

    def directory_failed(self, directory: LogDirectory) -> None:
        """Give up the moves from and to a directory that has failed.

        The copy of a log that was in there stays until the next start, as a sign that it is not the log.
        """
        for place, move in list(self._moves.items()):
            home = self._log_directories.directory_of(place)
            if directory not in (home, move.directory):
                continue
            del self._moves[place]
            self._timers.cancel(("log move", place))
            try:
                move.future.copy.close(clean=False)
            except OSError as fault:
                log.warning("the copy of %s could not be closed: %s", move.partition, fault)
            if home is not directory and move.announced:
                self._placements.expect(place, home.directory_id, partial(self._word_taken_back, move))
            else:
                self.announced.pop(place, None)
                self._placements.forget(place)
        for place in list(self._taken_back):
            if self._log_directories.directory_of(place) is directory:
                del self._taken_back[place]
                self.announced.pop(place, None)
                self._placements.forget(place)

    def _step_later(self, place: TopicPartition, move: _Move, delay_ms: int) -> None:
        self._timers.set_after(("log move", place), delay_ms, partial(self._step, place, move))

    def _step(self, place: TopicPartition, move: _Move) -> None:
        """Copy a piece, or come to the end."""
        if self._moves.get(place) is not move:
            return
        if self._replicas.replica(*place) is not move.partition:
            self._abandon(place, move)
            return
        try:
            copied_bytes = self._copies.copy_some(move.future)
            if copied_bytes:
                rate = self._settings.get_int("replica.alter.log.dirs.io.max.bytes.per.second")
                self._step_later(place, move, copied_bytes * 1_000 // rate)
            elif not move.flushed:
                self._flush(place, move)
            elif not move.announced:
                self._announce(place, move)
            elif not move.known:
                return
            elif self._copies.may_take_over(move.partition):
                self._take_over(place, move)
            else:
                self._step_later(place, move, RETRY_MS)
        except OSError as fault:
            self._fail(place, move, fault)

    def _fail(self, place: TopicPartition, move: _Move, fault: BaseException) -> None:
        log.error("the move of %s to %s failed: %r", move.partition, move.directory.path, fault)
        self._disk_faults.noticed(fault)
        if self._moves.get(place) is move:
            self._abandon(place, move)

    def _flush(self, place: TopicPartition, move: _Move) -> None:
        move.flushed = True
        copy = move.future.copy
        plan = copy.flush_plan()
        if plan is None:
            self._step_later(place, move, 0)
            return

        def flushed(fault: BaseException | None) -> None:
            if isinstance(fault, BaseException):
                self._fail(place, move, fault)
                return
            copy.flushed(plan)
            self._step_later(place, move, 0)

        self._background.run(plan.run, flushed)

    def _announce(self, place: TopicPartition, move: _Move) -> None:
        """Tell the cluster that the replica is in the other directory."""
        self._copies.write_note(move.partition, move.directory)
        move.announced = True
        self.announced[place] = move.directory.directory_id

        def known() -> None:
            move.known = True
            if self._moves.get(place) is move:
                self._step_later(place, move, 0)

        self._placements.expect(place, move.directory.directory_id, known, arrives=True)

    def _take_over(self, place: TopicPartition, move: _Move) -> None:
        self._copies.take_over(move.partition, move.future, move.directory)
        del self._moves[place]
        self.announced.pop(place, None)
        self._placements.arrived(place)
        log.info("%s was moved to %s", move.partition, move.directory.path)

    def _abandon(self, place: TopicPartition, move: _Move, instead: LogDirectory | None = None) -> None:
        """Give a move up; the replica stays where it is, or goes elsewhere instead."""
        self._moves.pop(place, None)
        self._timers.cancel(("log move", place))
        move.future.copy.close(clean=False)
        folder = move.future.copy.directory
        if not move.announced or self._replicas.replica(*place) is not move.partition:
            self.announced.pop(place, None)
            self._placements.forget(place)
            self._copies.remove(folder)
            return
        self._taken_back[place] = instead

        def taken_back() -> None:
            target = self._taken_back.pop(place, None)
            self._copies.remove(folder)
            self._word_taken_back(move)
            if target is not None and self._replicas.replica(*place) is move.partition:
                self.move(place, target.path)

        self._placements.expect(place, self._log_directories.directory_of(place).directory_id, taken_back)

    def _word_taken_back(self, move: _Move) -> None:
        """The cluster knows again that the replica is where it was."""
        self.announced.pop(TopicPartition(move.partition.topic, move.partition.index), None)
        self._copies.remove_note(move.partition)

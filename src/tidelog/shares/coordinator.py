"""The share coordinator of one partition of `__share_group_state`: a pure machine.

    effects = machine.handle(command, now_ms)         decide
    machine.wrote(token, base_offset, now_ms)         the append is in the log: apply its records
    machine.appended(token, now_ms)                   it is replicated: tell those who wait for that
    machine.append_refused(token, code, now_ms)       it is not in the log (or not replicated in time)

It keeps what the leaders of partitions must not forget of their share partitions: where they start, what was
delivered how often, and in which epochs of state and leader they are. An older epoch is refused. Most writes
are a ShareUpdate with what has changed; after `updates_per_snapshot` of them comes a ShareSnapshot with all
there is, so that the log before the oldest last snapshot (`redundant_before`) can go.

Loading is `apply` for every record in order, then `loaded`; `resign` ends it. Answers are the fields of one
partition's result, under the names of the newest protocol version.
"""

from collections.abc import Mapping
from uuid import UUID

from tidelog.model.effects import Effect, RecordPair
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error
from tidelog.shares.coordinator_commands import (
    NO_EPOCH,
    CoordinatorCommand,
    DeleteState,
    ForgetTopics,
    InitializeState,
    ReadState,
    ReadSummary,
    SnapshotCold,
    WriteState,
)
from tidelog.shares.schemas import (
    SNAPSHOT_KEY,
    UNINITIALIZED_COUNT,
    UNINITIALIZED_OFFSET,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    read_key,
    read_snapshot,
    read_update,
    snapshot_key,
    snapshot_value,
    update_key,
    update_value,
)
from tidelog.shares.settings import ShareCoordinatorSettings
from tidelog.shares.state_batches import StateBatch, StateBatches

Response = Mapping[str, object]

_NEVER_INITIALIZED = "{} operation on uninitialized share partition not allowed."


class StoredState:
    """What is stored of one share partition."""

    __slots__ = (
        "batches",
        "create_timestamp_ms",
        "delivery_complete_count",
        "leader_epoch",
        "snapshot_epoch",
        "snapshot_offset",
        "start_offset",
        "state_epoch",
        "updates",
        "write_timestamp_ms",
    )

    def __init__(self, snapshot: ShareSnapshot, snapshot_offset: int) -> None:
        self.snapshot_epoch = snapshot.snapshot_epoch
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.start_offset = snapshot.start_offset
        self.delivery_complete_count = snapshot.delivery_complete_count
        self.create_timestamp_ms = snapshot.create_timestamp_ms
        self.write_timestamp_ms = snapshot.write_timestamp_ms
        self.batches = StateBatches(snapshot.batches)
        self.snapshot_offset = snapshot_offset
        """Where in the log the snapshot is: what is older says nothing any more."""
        self.updates = 0
        """Since the snapshot."""

    def __repr__(self) -> str:
        return f"<StoredState start={self.start_offset} batches={len(self.batches)} epoch={self.state_epoch}>"

    def update(self, update: ShareUpdate) -> None:
        self.updates += 1
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        # A start offset never goes back: what is late, or repeated, would have records delivered again.
        if update.start_offset == UNINITIALIZED_OFFSET or update.start_offset >= self.start_offset:
            self.start_offset = max(self.start_offset, update.start_offset)
            self.delivery_complete_count = update.delivery_complete_count
        self.batches.merge(update.batches)
        self.batches.prune(self.start_offset)

    def snapshot(self) -> ShareSnapshot:
        return ShareSnapshot(
            self.snapshot_epoch,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.delivery_complete_count,
            self.create_timestamp_ms,
            self.write_timestamp_ms,
            tuple(self.batches),
        )


class ShareCoordinator:
    """All share partitions whose key hashes to one partition."""

    def __init__(self, partition: int, settings: ShareCoordinatorSettings) -> None:
        self.partition = partition
        self.stored: dict[ShareKey, StoredState] = {}
        self._settings = settings
        self._image = ClusterImage()
        self._outbox = Outbox(partition)

    def __repr__(self) -> str:
        return f"<ShareCoordinator partition={self.partition} stored={len(self.stored)}>"

    def observe(self, image: ClusterImage) -> None:
        """The metadata that says which partitions there are."""
        self._image = image

    def reconfigure(self, settings: ShareCoordinatorSettings) -> None:
        self._settings = settings

    # ------------------------------------------------------------ deciding

    def handle(self, command: CoordinatorCommand, now_ms: int) -> list[Effect]:
        match command:
            case WriteState():
                self._write(command, now_ms)
            case ReadState():
                self._read(command)
            case InitializeState():
                self._initialize(command, now_ms)
            case DeleteState():
                self._delete(command)
            case ReadSummary():
                self._summarize(command)
            case SnapshotCold():
                self._snapshot_cold(now_ms)
            case ForgetTopics():
                gone = [key for key in self.stored if key.topic_id in command.topic_ids]
                if gone:
                    self._outbox.append([(snapshot_key(key), None) for key in gone])
        return self._outbox.take()

    def _partition_fault(self, key: ShareKey) -> Refused | None:
        if key.partition < 0:
            return Refused(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
        name = self._image.topic_names_by_id.get(key.topic_id)
        if name is None or key.partition >= len(self._image.topics[name].partitions):
            message = "This server does not host this topic-partition."
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return None

    def _leader_fault(self, key: ShareKey, leader_epoch: int, operation: str) -> Refused | None:
        """Is the share partition there, and is this its leader?"""
        if key.partition < 0:
            return self._partition_fault(key)
        stored = self.stored.get(key)
        if stored is None:
            return Refused(ErrorCode.INVALID_REQUEST, _NEVER_INITIALIZED.format(operation))
        if leader_epoch != NO_EPOCH and stored.leader_epoch > leader_epoch:
            message = f"The leader epoch is {leader_epoch}, the coordinator's {stored.leader_epoch}."
            return Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
        return None

    def _state_fault(self, key: ShareKey, state_epoch: int) -> Refused | None:
        stored = self.stored.get(key)
        if stored is None or state_epoch == NO_EPOCH or stored.state_epoch <= state_epoch:
            return None
        message = f"The state epoch is {state_epoch}, the coordinator's {stored.state_epoch}."
        return Refused(ErrorCode.FENCED_STATE_EPOCH, message)

    def _write(self, command: WriteState, now_ms: int) -> None:
        key = command.key
        refused = (
            self._leader_fault(key, command.leader_epoch, "Write")
            or self._state_fault(key, command.state_epoch)
            or self._partition_fault(key)
        )
        if refused is not None:
            self._outbox.reply(command.token, refusal(key, refused))
            return
        stored = self.stored[key]
        update = ShareUpdate(
            stored.snapshot_epoch,
            max(stored.leader_epoch, command.leader_epoch),
            command.start_offset,
            command.delivery_complete_count,
            tuple(StateBatches(command.batches)),
        )
        self._store(command.token, key, update, result(key), now_ms)

    def _store(self, token: int, key: ShareKey, update: ShareUpdate, answer: Response, now_ms: int) -> None:
        """Append an update, or a snapshot that contains it when there have been enough updates."""
        stored = self.stored[key]
        if stored.updates < self._settings.updates_per_snapshot:
            self._append(token, key, (update_key(key), update_value(update)), answer)
            return
        merged = StoredState(stored.snapshot(), stored.snapshot_offset)
        merged.update(update)
        snapshot = merged.snapshot()._replace(
            snapshot_epoch=stored.snapshot_epoch + 1, create_timestamp_ms=now_ms, write_timestamp_ms=now_ms
        )
        self._append(token, key, (snapshot_key(key), snapshot_value(snapshot)), answer)

    def _append(self, token: int, key: ShareKey, record: RecordPair, answer: Response) -> None:
        def on_appended(now_ms: int) -> None:
            self._outbox.reply(token, answer)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            self._outbox.reply(token, refusal(key, Refused(coordinator_error(error), "")))

        self._outbox.append([record], on_appended=on_appended, on_failed=on_failed)

    def _read(self, command: ReadState) -> None:
        key = command.key
        refused = self._leader_fault(key, command.leader_epoch, "Read") or self._partition_fault(key)
        if refused is not None:
            self._outbox.reply(command.token, refusal(key, refused))
            return
        stored = self.stored[key]
        answer = _read_result(key, stored)
        if command.leader_epoch <= stored.leader_epoch:
            self._answer_read(command.token, key, answer)
            return
        # The fence: from here on nobody writes in an older epoch.
        update = ShareUpdate(
            stored.snapshot_epoch,
            command.leader_epoch,
            stored.start_offset,
            stored.delivery_complete_count,
            (),
        )
        self._append(command.token, key, (update_key(key), update_value(update)), answer)

    def _answer_read(self, token: int, key: ShareKey, answer: Response) -> None:
        """Once what it may have seen is replicated."""
        otherwise = refusal(key, Refused(ErrorCode.NOT_COORDINATOR, ""))
        self._outbox.read_reply(token, answer, otherwise)

    def _initialize(self, command: InitializeState, now_ms: int) -> None:
        key, stored = command.key, self.stored.get(command.key)
        refused = self._state_fault(key, command.state_epoch) or self._partition_fault(key)
        if refused is not None:
            self._outbox.reply(command.token, refusal(key, refused))
            return
        if stored is not None and stored.state_epoch == command.state_epoch:
            # Repeated, or late: what has happened since in this epoch is not to be undone.
            self._answer_read(command.token, key, result(key))
            return
        begins = command.start_offset != UNINITIALIZED_OFFSET
        snapshot = ShareSnapshot(
            0 if stored is None else stored.snapshot_epoch + 1,
            command.state_epoch,
            0 if stored is None else stored.leader_epoch,
            command.start_offset,
            0 if begins else UNINITIALIZED_COUNT,
            now_ms,
            now_ms,
            (),
        )
        self._append(command.token, key, (snapshot_key(key), snapshot_value(snapshot)), result(key))

    def _delete(self, command: DeleteState) -> None:
        key = command.key
        refused = self._partition_fault(key)
        if refused is not None:
            self._outbox.reply(command.token, refusal(key, refused))
        elif key not in self.stored:
            self._answer_read(command.token, key, result(key))
        else:
            self._append(command.token, key, (snapshot_key(key), None), result(key))

    def _summarize(self, command: ReadSummary) -> None:
        key, stored = command.key, self.stored.get(command.key)
        refused = self._partition_fault(key)
        if refused is not None:
            self._outbox.reply(command.token, refusal(key, refused))
            return
        answer = {
            **result(key),
            "state_epoch": 0 if stored is None else stored.state_epoch,
            "leader_epoch": 0 if stored is None else stored.leader_epoch,
            "start_offset": UNINITIALIZED_OFFSET if stored is None else stored.start_offset,
            "delivery_complete_count": (
                UNINITIALIZED_COUNT if stored is None else stored.delivery_complete_count
            ),
        }
        self._answer_read(command.token, key, answer)

    def _snapshot_cold(self, now_ms: int) -> None:
        """An old snapshot keeps all of the log after it, as soon as others write. One append for each share
        partition, so that no batch grows with their number.
        """
        if not any(stored.updates for stored in self.stored.values()):
            return
        for key, stored in self.stored.items():
            if now_ms - stored.write_timestamp_ms >= self._settings.cold_snapshot_interval_ms:
                snapshot = stored.snapshot()._replace(
                    snapshot_epoch=stored.snapshot_epoch + 1, write_timestamp_ms=now_ms
                )
                self._outbox.append([(snapshot_key(key), snapshot_value(snapshot))])

    # ------------------------------------------------------------ verdicts on appends

    def wrote(self, token: int, base_offset: int, now_ms: int) -> list[Effect]:
        """The records are in our log from `base_offset` on: they are the state now."""
        pending = self._outbox.pending[token]
        pending.written = True
        for index, (key, value) in enumerate(pending.records):
            self.apply(key, value, base_offset + index)
        return self._outbox.take()

    def appended(self, token: int, now_ms: int) -> list[Effect]:
        """The records survive us: answer those who were to wait for that."""
        return self._outbox.appended(token, now_ms)

    def append_refused(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Not in the log, or written but not replicated in time: tell those who wait."""
        return self._outbox.refused(token, error, now_ms)

    # ------------------------------------------------------------ state from records

    def apply(self, key: bytes, value: bytes | None, record_offset: int) -> None:
        """Take one record of the log in; raises `UnreadableRecord` for bytes no Kafka of our time wrote."""
        decoded = read_key(key)
        if decoded is None:
            return
        key_type, share_key = decoded
        if key_type == SNAPSHOT_KEY:
            if value is None:
                self.stored.pop(share_key, None)
            else:
                self.stored[share_key] = StoredState(read_snapshot(value), record_offset)
            return
        stored = self.stored.get(share_key)
        # Without its snapshot an update is of a share partition that was deleted since.
        if value is not None and stored is not None:
            stored.update(read_update(value))

    def loaded(self, now_ms: int) -> list[Effect]:
        """All records are applied; there is nothing that would have to be begun."""
        return self._outbox.take()

    def hold_reads(self) -> int:
        """What was loaded may still be lost: reads wait for `appended` of the token returned."""
        return self._outbox.hold_reads()

    def resign(self, now_ms: int) -> list[Effect]:
        """Leadership is gone: everyone who waits here must ask elsewhere."""
        return self._outbox.resign(now_ms)

    # ------------------------------------------------------------ looking

    def redundant_before(self) -> int | None:
        """The offset before which the log says nothing that a later snapshot does not say; None if there is
        nothing stored, so that all of it is redundant.
        """
        return min((stored.snapshot_offset for stored in self.stored.values()), default=None)

    def keys_of(self, topic_ids: frozenset[UUID]) -> list[ShareKey]:
        return [key for key in self.stored if key.topic_id in topic_ids]


def result(key: ShareKey) -> Response:
    return {"partition": key.partition, "error_code": ErrorCode.NONE, "error_message": None}


def refusal(key: ShareKey, refused: Refused) -> Response:
    """An error with what Kafka says where there is nothing to say."""
    return {
        "partition": key.partition,
        "error_code": refused.code,
        "error_message": refused.message or refused.code.name,
        "state_epoch": 0,
        "leader_epoch": 0,
        "start_offset": 0,
        "delivery_complete_count": UNINITIALIZED_COUNT,
        "state_batches": (),
    }


def _read_result(key: ShareKey, stored: StoredState) -> Response:
    return {
        **result(key),
        "state_epoch": stored.state_epoch,
        "start_offset": stored.start_offset,
        "state_batches": tuple(_batch_fields(batch) for batch in stored.batches),
    }


def _batch_fields(batch: StateBatch) -> Response:
    return batch._asdict()

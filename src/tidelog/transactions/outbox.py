"""One step of the machine: the effects it collects, and the appends whose verdict is still out.

A transactional id has at most one append on its way. Until that is replicated the id is in transition and
everyone who asks for another step is told CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Callable, Hashable, Mapping

from tidelog.model.effects import Append, CancelTimer, Effect, Event, RecordPair, Reply, Send, SetTimer
from tidelog.model.errors import ErrorCode
from tidelog.transactions.schemas import transaction_key, transaction_value
from tidelog.transactions.transaction import Transaction

OnAppended = Callable[[int], None]
OnFailed = Callable[[ErrorCode, int], None]

_COORDINATOR_ERROR_OF_APPEND_ERROR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(append_error: ErrorCode) -> ErrorCode:
    """What a producer is told when its record could not be stored: it knows coordinators, not logs."""
    return _COORDINATOR_ERROR_OF_APPEND_ERROR.get(append_error, append_error)


class PendingAppend:
    """Records on their way into the log, what they make of their ids, and who is told."""

    __slots__ = ("after", "on_appended", "on_failed", "records", "written")

    def __init__(
        self,
        after: Mapping[str, Transaction | None],
        records: tuple[RecordPair, ...],
        on_appended: OnAppended,
        on_failed: OnFailed,
    ) -> None:
        self.after = after
        self.records = records
        self.on_appended = on_appended
        self.on_failed: OnFailed | None = on_failed
        self.written = False


class Outbox:
    """Collects the effects of the running step; keeps the appends on their way."""

    __slots__ = ("_effects", "_next_token", "_partition", "in_transition", "pending", "value_version")

    def __init__(self, partition: int, value_version: int) -> None:
        self._partition = partition
        self._next_token = 0
        self._effects: list[Effect] = []
        self.value_version = value_version
        self.pending: dict[int, PendingAppend] = {}
        self.in_transition: dict[str, Transaction | None] = {}
        """What the ids on their way were before: that much is replicated for certain."""

    def reply(self, token: int, response: Mapping[str, object]) -> None:
        self._effects.append(Reply(token, response))

    def set_timer(self, key: Hashable, deadline_ms: int) -> None:
        self._effects.append(SetTimer(key, deadline_ms))

    def cancel_timer(self, key: Hashable) -> None:
        self._effects.append(CancelTimer(key))

    def send(self, message: object) -> None:
        self._effects.append(Send(message))

    def event(self, kind: str, fields: Mapping[str, object], cause: str) -> None:
        self._effects.append(Event(kind, fields, cause))

    def append(
        self,
        before: Mapping[str, Transaction],
        after: Mapping[str, Transaction | None],
        on_appended: OnAppended,
        on_failed: OnFailed,
    ) -> None:
        """Write what the ids become; None is a tombstone. `before` has what they are."""
        assert not any(transactional_id in self.in_transition for transactional_id in after)
        records = tuple(
            (
                transaction_key(transactional_id),
                None if transaction is None else transaction_value(transaction, self.value_version),
            )
            for transactional_id, transaction in after.items()
        )
        token = self._next_token
        self._next_token += 1
        self.pending[token] = PendingAppend(after, records, on_appended, on_failed)
        self.in_transition.update({name: before.get(name) for name in after})
        self._effects.append(Append(self._partition, records, token))

    def settle(self, token: int) -> PendingAppend:
        """The append is over, one way or the other: its ids may move again."""
        pending = self.pending.pop(token)
        for transactional_id in pending.after:
            del self.in_transition[transactional_id]
        return pending

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

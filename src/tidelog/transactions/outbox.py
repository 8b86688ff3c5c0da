"""One step of the machine: the effects it collects, and the appends whose verdict is still out.

A transactional id has at most one append on its way. Until that is replicated the id is in transition and
everyone who asks for another step is told CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Callable, Mapping

from tidelog.model.effects import Append, RecordPair
from tidelog.model.errors import ErrorCode
from tidelog.model.step_effects import StepEffects
from tidelog.transactions.schemas import transaction_key, transaction_value
from tidelog.transactions.transaction import Transaction

OnAppended = Callable[[int], None]
OnFailed = Callable[[ErrorCode, int], None]


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


class Outbox(StepEffects):
    """Collects the effects of the running step; keeps the appends on their way."""

    __slots__ = ("in_transition", "pending", "value_version")

    def __init__(self, partition: int, value_version: int) -> None:
        super().__init__(partition)
        self.value_version = value_version
        self.pending: dict[int, PendingAppend] = {}
        self.in_transition: dict[str, Transaction | None] = {}
        """What the ids on their way were before: that much is replicated for certain."""

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
        token = self._new_token()
        self.pending[token] = PendingAppend(after, records, on_appended, on_failed)
        self.in_transition.update({name: before.get(name) for name in after})
        self._effects.append(Append(self._partition, records, token))

    def settle(self, token: int) -> PendingAppend:
        """The append is over, one way or the other: its ids may move again."""
        pending = self.pending.pop(token)
        for transactional_id in pending.after:
            del self.in_transition[transactional_id]
        return pending

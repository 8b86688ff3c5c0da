"""A step of a classic group on paper: a copy of the group, why the step happens, and what it stores.

Most of a classic group is not durable: who is there, who waits for what. Only its generation and assignment
are records. All the same a step changes a copy, which takes the group's place as a whole: at once if the step
stores nothing, and otherwise when its records are in the log. If they are refused the copy is forgotten.
"""

from collections.abc import Callable, Mapping

from tidelog.groups.classic_group import ClassicGroup
from tidelog.groups.durable import DurableGroups
from tidelog.groups.schemas import group_metadata_key, group_metadata_value
from tidelog.groups.states import GroupState
from tidelog.model.effects import RecordPair
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox

TimerKey = tuple[str, str, str]

OnFailed = Callable[[ErrorCode, int, bool], None]
"""Called with the error, the time, and whether the step was taken back: else it is only not replicated."""


class ClassicDraft:
    """The next state of a group, and the records on the way there."""

    __slots__ = ("cause", "group", "records")

    def __init__(self, group: ClassicGroup, cause: str) -> None:
        self.group = group.copy()
        self.cause = cause
        """Why the step happens, in words, for its events."""
        self.records: list[RecordPair] = []

    def store(self, assignments: Mapping[str, bytes]) -> None:
        """Write the group as it is in the draft now."""
        group = self.group
        self.records.append(
            (group_metadata_key(group.group_id), group_metadata_value(group.to_metadata(assignments)))
        )

    def bury(self, now_ms: int) -> None:
        """A tombstone for the group, in which nobody is."""
        self.records.append((group_metadata_key(self.group.group_id), None))
        self.group.transition_to(GroupState.DEAD, now_ms)


class ClassicGroups(dict[str, ClassicGroup]):
    """The classic groups of one partition: each is replaced by the draft of its next state, never changed."""

    def __init__(self, durable: DurableGroups) -> None:
        super().__init__()
        self._durable = durable

    def adopt(self, group: ClassicGroup) -> None:
        """What a draft said is the group now; a dead one is gone when no record knows of it."""
        if group.is_in(GroupState.DEAD) and not self._durable.knows(group.group_id):
            self.pop(group.group_id, None)
        else:
            self[group.group_id] = group

    def commit(
        self,
        draft: ClassicDraft,
        outbox: Outbox,
        *,
        on_appended: Callable[[int], None] | None = None,
        on_failed: OnFailed | None = None,
    ) -> None:
        """End a step: its draft is the group from now on, or from when its records are in the log."""
        if not draft.records:
            self.adopt(draft.group)
            return
        is_taken_back = False

        def take_back() -> None:
            nonlocal is_taken_back
            is_taken_back = True

        def failed(error: ErrorCode, now_ms: int) -> None:
            if on_failed is not None:
                on_failed(error, now_ms, is_taken_back)

        outbox.append(
            draft.records,
            undo=take_back,
            on_written=lambda now_ms: self.adopt(draft.group),
            on_appended=on_appended,
            on_failed=failed,
        )

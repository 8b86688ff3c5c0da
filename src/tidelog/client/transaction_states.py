"""What coordinators call the states of a transaction, and what that means: one definition for everybody.

A transaction is open until its coordinator has written the end of it into every partition: until then readers
with read_committed wait, and doctor and the console tell of it (`is_open`). It is undecided until somebody
commits or aborts it, or its time is up: only then can it still be ended either way (`is_undecided`).
"""

ONGOING = "Ongoing"
#: also of what begins so: CompleteCommit, CompleteAbort
_ENDED = ("Complete", "Empty", "Dead")


def is_open(state: str) -> bool:
    """Whether a coordinator that says this has still something to write for the transaction."""
    return not state.startswith(_ENDED)


def is_undecided(state: str) -> bool:
    """Whether a transaction in this state can still be committed, and still be aborted."""
    return state == ONGOING

"""What cannot be done with a cluster as it is, in words for a person.

Trouble on the way to a cluster, and its refusals, are the client's own faults (`client.faults`).
"""


class AdminFault(Exception):
    """What was asked for is not possible; `hint` says what to try next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

"""What can go wrong between a client and a cluster.

    ClientFault
    ├── BadOption              an option that cannot be used; the text says what to write instead
    ├── AuthenticationFailed   the broker does not believe who we are, or we do not believe it; final
    ├── UnsupportedVersion     the broker speaks no version of an API that we speak; final
    ├── LinkFault              a connection could not be made, broke or stayed silent; worth another try
    └── Refusal                the broker answered with an error code; `code` says whether to try again

`Refusal` is raised where a whole operation has failed; single partitions of an answer carry codes as data.
"""

from tidelog.model.errors import ErrorCode


class ClientFault(Exception):
    """Anything that keeps a client from doing what it was asked."""


class BadOption(ClientFault, ValueError):
    """An option that cannot be used as it is."""


class AuthenticationFailed(ClientFault):
    """TLS or SASL ended without agreement."""


class UnsupportedVersion(ClientFault):
    """No version of an API is spoken by both sides."""


class LinkFault(ClientFault):
    """A connection could not be made, was lost, or no answer came in time."""


class Refusal(ClientFault):
    """The broker's answer is an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = known_code(code)
        self.what = what
        self.message = message
        super().__init__(f"{what}: {self.code.name}" + (f" ({message})" if message else ""))

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE

    def __reduce__(self) -> tuple[type["Refusal"], tuple[int, str, str | None]]:
        return Refusal, (int(self.code), self.what, self.message)


def known_code(code: int) -> ErrorCode:
    """The code under its name; one that is newer than our table is an unknown error."""
    try:
        return ErrorCode(int(code))
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


#: somebody else leads or coordinates, or will soon: look again who it is, then try again
MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LISTENER_NOT_FOUND,
    }
)

#: the same request may succeed later
RETRIABLE = MOVED | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
}

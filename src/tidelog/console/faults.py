"""Trouble that a page can explain: what happened, what to do about it, and the HTTP status that fits."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from tidelog.client.faults import ClientFault, LinkFault, Refusal

NOT_FOUND = 404
BAD_REQUEST = 400
FORBIDDEN = 403
UNAVAILABLE = 503
BAD_GATEWAY = 502

_ABSENT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.GROUP_ID_NOT_FOUND,
}
_UNREACHABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
UNREACHABLE_HINT = (
    "Check that the cluster runs and that --bootstrap points at it. This page tries again by itself."
)


class ConsoleFault(Exception):
    """Something a person should read; never a defect of the console."""

    def __init__(self, message: str, hint: str = "", status: int = BAD_REQUEST) -> None:
        self.message = message
        self.hint = hint
        self.status = status
        super().__init__(message)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what the clients raise into a ConsoleFault that begins with `what`."""
    try:
        yield
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        raise _fault_of_code(f"{what}: {error.str()}", error.code()) from failure
    except TimeoutError as failure:
        raise ConsoleFault(
            f"{what}: no answer in time", "The brokers may be busy; try again.", UNAVAILABLE
        ) from failure
    except LinkFault as failure:
        raise ConsoleFault(f"{what}: {failure}", UNREACHABLE_HINT, UNAVAILABLE) from failure
    except Refusal as failure:
        told = failure.message or (failure.code.name if failure.what == what else str(failure))
        raise _fault_of_code(f"{what}: {told}", int(failure.code)) from failure
    except ClientFault as failure:
        raise ConsoleFault(f"{what}: {failure}", "", BAD_GATEWAY) from failure
    except (ValueError, TypeError) as failure:
        raise ConsoleFault(f"{what}: {failure}") from failure


def _fault_of_code(message: str, code: int) -> ConsoleFault:
    """The fault of an error code, a broker's or librdkafka's own."""
    if code in _ABSENT:
        return ConsoleFault(message, "It may have been deleted.", NOT_FOUND)
    if code in _FORBIDDEN:
        return ConsoleFault(message, "The console's user is not allowed to do this.", FORBIDDEN)
    if code in _UNREACHABLE:
        return ConsoleFault(message, UNREACHABLE_HINT, UNAVAILABLE)
    if code < 0:
        return ConsoleFault(message, "", BAD_GATEWAY)
    return ConsoleFault(message)

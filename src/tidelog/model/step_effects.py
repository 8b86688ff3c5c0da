"""What the steps of the coordinator machines have in common: effects collected in order, and the words for
an append that was refused.
"""

from collections.abc import Hashable, Mapping

from tidelog.model.effects import CancelTimer, Effect, Reply, Send, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode

_COORDINATOR_ERROR_OF_APPEND_ERROR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(append_error: ErrorCode) -> ErrorCode:
    """What a client is told when its record could not be stored: it knows coordinators, not logs."""
    return _COORDINATOR_ERROR_OF_APPEND_ERROR.get(append_error, append_error)


class StepEffects:
    """Collects the effects of the running step."""

    __slots__ = ("_effects", "_next_token", "_partition")

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._next_token = 0
        self._effects: list[Effect] = []

    def _new_token(self) -> int:
        """The name of the next append's verdict."""
        token = self._next_token
        self._next_token += 1
        return token

    def reply(self, token: int, response: Mapping[str, object]) -> None:
        self._effects.append(Reply(token, response))

    def set_timer(self, key: Hashable, deadline_ms: int) -> None:
        self._effects.append(SetTimer(key, deadline_ms))

    def cancel_timer(self, key: Hashable) -> None:
        self._effects.append(CancelTimer(key))

    def send(self, message: object) -> None:
        self._effects.append(Send(message))

    def event(self, kind: str, fields: Mapping[str, object], cause: str) -> None:
        self._effects.append(TellEvent(kind, fields, cause))

    def emit(self, effects: list[Effect]) -> None:
        self._effects += effects

    def take(self) -> list[Effect]:
        """End the step and return its effects."""
        effects, self._effects = self._effects, []
        return effects

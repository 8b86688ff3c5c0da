"""The requests of share coordinators (keys 83 to 87) as commands, and their answers as values: both ways.

A request is about one group and any partitions of any topics; a command is about one share partition.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.client.api_keys import (
    DELETE_SHARE_GROUP_STATE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    WRITE_SHARE_GROUP_STATE,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import APIS
from tidelog.shares.coordinator_commands import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    WriteState,
)
from tidelog.shares.schemas import UNINITIALIZED_COUNT, UNINITIALIZED_OFFSET, ShareKey
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import RecordState
from tidelog.storage.partition_metadata import encode_topic_id

StateCommand = InitializeState | ReadState | WriteState | DeleteState | ReadSummary

API_KEYS: dict[type, int] = {
    InitializeState: INITIALIZE_SHARE_GROUP_STATE,
    ReadState: READ_SHARE_GROUP_STATE,
    WriteState: WRITE_SHARE_GROUP_STATE,
    DeleteState: DELETE_SHARE_GROUP_STATE,
    ReadSummary: READ_SHARE_GROUP_STATE_SUMMARY,
}


class StateAnswer(NamedTuple):
    """What a share coordinator says of one share partition; what its request does not ask for is unknown."""

    error: ErrorCode
    message: str = ""
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = UNINITIALIZED_COUNT
    batches: tuple[StateBatch, ...] = ()


def coordinator_key(key: ShareKey) -> str:
    """What FindCoordinator is asked for, and what says which partition keeps the state."""
    return f"{key.group_id}:{encode_topic_id(key.topic_id)}:{key.partition}"


def version_of(api_key: int) -> int:
    """What brokers ask each other: the newest version."""
    return APIS[api_key].max_version


# ---------------------------------------------------------------- requests


def request_fields(group_id: str, commands: Iterable[StateCommand]) -> Mapping[str, object]:
    """One request of commands of one kind, all of one group."""
    topics: dict[UUID, list[Mapping[str, object]]] = {}
    for command in commands:
        topics.setdefault(command.key.topic_id, []).append(_partition_fields(command))
    rows = [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()]
    return {"group_id": group_id, "topics": rows}


def _partition_fields(command: StateCommand) -> Mapping[str, object]:
    fields: dict[str, object] = {"partition": command.key.partition}
    match command:
        case InitializeState():
            fields.update(state_epoch=command.state_epoch, start_offset=command.start_offset)
        case ReadState():
            fields["leader_epoch"] = command.leader_epoch
        case ReadSummary():
            fields["leader_epoch"] = -1
        case WriteState():
            fields.update(
                state_epoch=command.state_epoch,
                leader_epoch=command.leader_epoch,
                start_offset=command.start_offset,
                delivery_complete_count=command.delivery_complete_count,
                state_batches=[batch._asdict() for batch in command.batches],
            )
    return fields


def command_of(api_key: int, token: int, key: ShareKey, asked: Any) -> StateCommand:
    """The command for one partition of a request."""
    match api_key:
        case _ if api_key == INITIALIZE_SHARE_GROUP_STATE:
            return InitializeState(token, key, asked.state_epoch, asked.start_offset)
        case _ if api_key == READ_SHARE_GROUP_STATE:
            return ReadState(token, key, asked.leader_epoch)
        case _ if api_key == WRITE_SHARE_GROUP_STATE:
            return WriteState(
                token,
                key,
                asked.state_epoch,
                asked.leader_epoch,
                asked.start_offset,
                tuple(_batch(each) for each in asked.state_batches),
                getattr(asked, "delivery_complete_count", UNINITIALIZED_COUNT),
            )
        case _ if api_key == DELETE_SHARE_GROUP_STATE:
            return DeleteState(token, key)
    return ReadSummary(token, key)


def malformed(api_key: int, asked: Any) -> str | None:
    """What is wrong with one partition of a request, as far as the request alone says."""
    if api_key != WRITE_SHARE_GROUP_STATE:
        return None
    for each in asked.state_batches:
        if not 0 <= each.first_offset <= each.last_offset:
            return f"The batch from {each.first_offset} to {each.last_offset} is none."
        if each.delivery_state not in _STORED or each.delivery_count < 0:
            return f"State {each.delivery_state} with {each.delivery_count} deliveries is none."
    return None


_STORED = frozenset(RecordState) - {RecordState.ACQUIRED}


def _batch(row: Any) -> StateBatch:
    return StateBatch(row.first_offset, row.last_offset, RecordState(row.delivery_state), row.delivery_count)


# ---------------------------------------------------------------- answers


def answer_of(fields: Mapping[str, Any]) -> StateAnswer:
    """The answer of a share coordinator here."""
    return StateAnswer(
        fields["error_code"],
        fields["error_message"] or "",
        fields.get("state_epoch", 0),
        fields.get("leader_epoch", 0),
        fields.get("start_offset", UNINITIALIZED_OFFSET),
        fields.get("delivery_complete_count", UNINITIALIZED_COUNT),
        tuple(StateBatch(**batch) for batch in fields.get("state_batches", ())),
    )


def answers_of(group_id: str, response: Any) -> dict[ShareKey, StateAnswer]:
    """The answers of a share coordinator on another broker."""
    found = {}
    for topic in response.results:
        for row in topic.partitions:
            found[ShareKey(group_id, topic.topic_id, row.partition)] = StateAnswer(
                ErrorCode(row.error_code.value),
                row.error_message or "",
                getattr(row, "state_epoch", 0),
                getattr(row, "leader_epoch", 0),
                getattr(row, "start_offset", UNINITIALIZED_OFFSET),
                getattr(row, "delivery_complete_count", UNINITIALIZED_COUNT),
                tuple(_batch(each) for each in getattr(row, "state_batches", ())),
            )
    return found

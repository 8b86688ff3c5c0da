"""Who is there and who decides: the ephemeral keys of the coordination store.

    live/<broker id>   a broker that is there: one life of it (incarnation), addresses, rack, log directories
    controller         the broker that decides, its life and its epoch

Both go when the session of their broker ends. Winning `controller` is one commit with the next number under
`controller-epoch`, whose version then fences every commit of earlier controllers. All functions here block;
they run in worker threads.
"""

import json
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.metadata.change_log import Snapshot, read_snapshot
from tidelog.controller.commands import LiveBroker, ReplicaPlacement
from tidelog.coordination.store import ABSENT, Committed, CoordinationStore, Entry, StoreError, Write
from tidelog.model.metadata import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    LIVE_PREFIX,
    ControllerRecord,
    Endpoint,
    MetadataCorruptError,
    record_from_entry,
    stored_directories,
)

#: a large decision that its controller has not brought to an end
UNFINISHED_KEY = "unfinished"
ATTEMPTS_MAX = 10


class Seat(NamedTuple):
    """Who sits in the controller's place; `incarnation` is empty in what a broker without a cluster wrote."""

    broker_id: int
    epoch: int
    incarnation: str


class Takeover(NamedTuple):
    """This broker is the controller: everything it must know before it decides anything."""

    epoch: int
    epoch_version: int
    snapshot: Snapshot
    live: tuple[LiveBroker, ...]
    unfinished: Entry | None


class Incumbent(NamedTuple):
    """Another broker is the controller."""

    broker_id: int
    epoch: int


class IdTaken(NamedTuple):
    """The broker id belongs to a session that is not this broker's."""

    holder: LiveBroker


def live_key(broker_id: int) -> str:
    """The key of a broker that is there."""
    return f"{LIVE_PREFIX}{broker_id}"


def encode_live(broker: LiveBroker) -> bytes:
    """The value of `live/<id>`."""
    fields: dict[str, object] = {
        "incarnation": broker.incarnation,
        "endpoints": {name: list(endpoint) for name, endpoint in broker.endpoints.items()},
        "rack": broker.rack,
        "directories": broker.directories,
        "offline_directories": broker.offline_directories,
        # All that controllers of older versions look at.
        "disk_id": broker.directories[0] if broker.directories else "",
        "unclean_shutdown": broker.unclean_shutdown,
    }
    if broker.lost_directories:
        fields["lost_directories"] = broker.lost_directories
    if broker.placements:
        placements: dict[str, dict[str, list[int]]] = {}
        doubtful: dict[str, list[int]] = {}
        for each in broker.placements:
            topics = placements.setdefault(each.directory, {})
            topics.setdefault(str(each.topic_id), []).append(each.partition)
            if each.doubtful:
                doubtful.setdefault(str(each.topic_id), []).append(each.partition)
        fields["placements"] = placements
        if doubtful:
            fields["doubtful"] = doubtful
    return json.dumps(fields, sort_keys=True).encode()


def decode_live(entry: Entry) -> LiveBroker:
    """Read a `live/<id>` back."""
    try:
        fields = json.loads(entry.value)
        doubtful = fields.get("doubtful", {})
        return LiveBroker(
            int(entry.key.removeprefix(LIVE_PREFIX)),
            str(fields["incarnation"]),
            {name: Endpoint(str(host), int(port)) for name, (host, port) in fields["endpoints"].items()},
            None if fields["rack"] is None else str(fields["rack"]),
            stored_directories(fields),
            int(fields.get("offline_directories", 0)),
            tuple(
                ReplicaPlacement(
                    UUID(topic_id), int(partition), directory, partition in doubtful.get(topic_id, ())
                )
                for directory, topics in fields.get("placements", {}).items()
                for topic_id, partitions in topics.items()
                for partition in partitions
            ),
            bool(fields.get("unclean_shutdown", False)),
            tuple(str(each) for each in fields.get("lost_directories", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorruptError(f"the registration {entry.key!r} cannot be read: {error!r}") from error


def read_live(store: CoordinationStore) -> tuple[LiveBroker, ...]:
    """Every broker that is there, by id."""
    return tuple(sorted((decode_live(entry) for entry in store.load(LIVE_PREFIX)), key=lambda b: b.broker_id))


def decode_seat(entry: Entry) -> Seat:
    """Read `controller`."""
    try:
        fields = json.loads(entry.value)
        return Seat(int(fields["broker_id"]), int(fields["epoch"]), str(fields.get("incarnation", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorruptError(f"{CONTROLLER_KEY!r} cannot be read: {error!r}") from error


def _encode_seat(seat: Seat) -> bytes:
    return json.dumps(seat._asdict(), sort_keys=True).encode()


def enter(store: CoordinationStore, me: LiveBroker) -> Takeover | Incumbent | IdTaken:
    """Register where that is not done yet, and take the controller's place if nobody has it.

    May be called again after any failure: what an earlier, interrupted call achieved is found and kept.
    """
    for _ in range(ATTEMPTS_MAX):
        found = store.get(live_key(me.broker_id))
        if found is not None:
            holder = decode_live(found)
            if holder.incarnation != me.incarnation:
                return IdTaken(holder)
        registration = (
            [] if found else [Write(live_key(me.broker_id), encode_live(me), ABSENT, ephemeral=True)]
        )
        seated = store.get(CONTROLLER_KEY)
        if seated is None:
            epoch = _stand(store, me, registration)
            takeover = None if epoch is None else _take_over(store, me, epoch)
            if takeover is not None:
                return takeover
            continue
        seat = decode_seat(seated)
        if not seat.incarnation:
            _retire_old_form(store, seated, seat)
            continue
        if registration and not isinstance(store.commit(registration), Committed):
            continue
        if seat.incarnation != me.incarnation:
            return Incumbent(seat.broker_id, seat.epoch)
        takeover = _take_over(store, me, seat.epoch)
        if takeover is not None:
            return takeover
    raise StoreError("the controller's place kept changing")


def _stand(store: CoordinationStore, me: LiveBroker, registration: list[Write]) -> int | None:
    """Try to take the empty place; the epoch won, or None if somebody was faster."""
    entry = store.get(CONTROLLER_EPOCH_KEY)
    epoch = (0 if entry is None else _last_epoch(entry)) + 1
    [(_, epoch_value)] = ControllerRecord(me.broker_id, epoch).writes()
    seat = Seat(me.broker_id, epoch, me.incarnation)
    outcome = store.commit(
        [
            *registration,
            Write(CONTROLLER_KEY, _encode_seat(seat), ABSENT, ephemeral=True),
            Write(CONTROLLER_EPOCH_KEY, epoch_value, ABSENT if entry is None else entry.version),
        ]
    )
    return epoch if isinstance(outcome, Committed) else None


def _last_epoch(entry: Entry) -> int:
    record = record_from_entry(entry.key, entry.value)
    assert isinstance(record, ControllerRecord)
    return record.epoch


def _take_over(store: CoordinationStore, me: LiveBroker, epoch: int) -> Takeover | None:
    """Read everything from the store, behind the fence; None if the place is lost already."""
    entry = store.get(CONTROLLER_EPOCH_KEY)
    if entry is None or record_from_entry(entry.key, entry.value) != ControllerRecord(me.broker_id, epoch):
        return None
    return Takeover(epoch, entry.version, read_snapshot(store), read_live(store), store.get(UNFINISHED_KEY))


def _retire_old_form(store: CoordinationStore, seated: Entry, seat: Seat) -> None:
    """Make room for the key that goes with its session; its epoch lives on where epochs are now."""
    writes = [Write(CONTROLLER_KEY, None, seated.version)]
    if store.get(CONTROLLER_EPOCH_KEY) is None:
        [(key, value)] = ControllerRecord(seat.broker_id, seat.epoch).writes()
        writes.append(Write(key, value, ABSENT))
    store.commit(writes)

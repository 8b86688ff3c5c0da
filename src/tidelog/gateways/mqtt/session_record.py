"""A session as a record of the compacted topic of sessions: JSON, keyed by the client's identifier.

{"owner": "gateway-1", "user": "ann", "expiry": 3600, "connected": true, "away_since": 0,
 "subscriptions": [["a/#", 1, 0, 0, 0, [["mqtt", 0, 17]]]],
 "next": [["mqtt", 0, 120]],
 "in_flight": [[5, 2, "mqtt", 0, 118, true, ""]],       packet id, QoS, where, released, retained topic
 "retained": [["a/status", 1]], "received": [7],
 "will": {"topic": …, "payload": base64, …}, "will_due": 0}
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.gateways.mqtt.messages import Origin
from tidelog.gateways.mqtt.packets import Will
from tidelog.gateways.mqtt.session import RETAINED, InFlight, Partition, Session, Subscription


class UnreadableSession(ValueError):
    """A record that is no session."""


@dataclass(slots=True)
class Stored:
    """A session as it was read: the rest of it is what belongs to a connection."""

    owner: str
    session: Session
    #: topics and QoS of retained messages that were not sent yet
    unsent_retained: list[tuple[str, int]]


def write(session: Session, owner: str, positions: dict[Partition, int]) -> bytes:
    """The record's value."""
    content: dict[str, Any] = {
        "owner": owner,
        "user": session.user,
        "expiry": session.expiry_seconds,
        "connected": session.connected,
        "away_since": session.disconnected_at_ms,
    }
    cursors = session.cursors(positions)
    if session.subscriptions:
        content["subscriptions"] = [
            [
                row.filter,
                row.qos,
                int(row.no_local),
                int(row.retain_as_published),
                row.identifier,
                [[*each, start] for each, start in row.starts.items() if start > cursors.get(each, start)],
            ]
            for row in session.subscriptions.values()
        ]
    if cursors:
        content["next"] = [[*partition, offset] for partition, offset in cursors.items()]
    if session.in_flight:
        content["in_flight"] = [
            [packet_id, row.qos, *row.origin, row.released, row.retained_topic]
            for packet_id, row in session.in_flight.items()
            if row.origin is not None
        ]
    unsent = session.unsent_retained()
    if unsent:
        content["retained"] = [[delivery.message.topic, delivery.qos] for delivery in unsent]
    if session.received:
        content["received"] = sorted(session.received)
    if session.will is not None:
        content["will"] = _will_content(session.will)
        content["will_due"] = session.will_due_at_ms
    return json.dumps(content, separators=(",", ":")).encode()


def read(client_id: str, value: bytes) -> Stored:
    """Raises UnreadableSession."""
    try:
        content = json.loads(value)
        session = Session(client_id, str(content["user"]))
        expiry = content["expiry"]
        session.expiry_seconds = None if expiry is None else int(expiry)
        session.connected = bool(content["connected"])
        session.disconnected_at_ms = int(content["away_since"])
        for text, qos, no_local, as_published, identifier, starts in content.get("subscriptions", ()):
            session.subscriptions[text] = Subscription(
                text,
                int(qos),
                bool(no_local),
                bool(as_published),
                int(identifier),
                {(topic, partition): offset for topic, partition, offset in starts},
            )
        session.next_offsets = {
            (topic, partition): offset for topic, partition, offset in content.get("next", ())
        }
        for packet_id, qos, topic, partition, offset, released, retained in content.get("in_flight", ()):
            origin = Origin(topic, partition, offset)
            session.in_flight[packet_id] = InFlight(None, origin, qos, released, retained)
            if not released and topic != RETAINED:
                session.resume[origin] = packet_id
        session.received = set(content.get("received", ()))
        if "will" in content:
            session.will = _read_will(content["will"])
            session.will_due_at_ms = int(content["will_due"])
        unsent = [(str(topic), int(qos)) for topic, qos in content.get("retained", ())]
        return Stored(str(content["owner"]), session, unsent)
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise UnreadableSession(f"the session of {client_id!r} cannot be read: {fault}") from fault


def _will_content(will: Will) -> dict[str, Any]:
    return {
        "topic": will.topic,
        "payload": base64.b64encode(will.payload).decode(),
        "qos": will.qos,
        "retain": will.retain,
        "properties": [[identifier, _plain(value)] for identifier, value in will.properties.items()],
    }


def _plain(value: object) -> object:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _read_will(content: Mapping[str, Any]) -> Will:
    properties: dict[int, Any] = {}
    for identifier, value in content["properties"]:
        if isinstance(value, dict):
            value = base64.b64decode(value["bytes"])
        elif isinstance(value, list):
            value = [(name, text) for name, text in value]
        properties[int(identifier)] = value
    return Will(
        str(content["topic"]),
        base64.b64decode(content["payload"]),
        int(content["qos"]),
        bool(content["retain"]),
        properties,
    )

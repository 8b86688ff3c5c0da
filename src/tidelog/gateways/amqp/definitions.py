"""What exists: exchanges, queues, bindings, gateways. A value for each record of the topic of definitions.

The topic is compacted and has one partition. Its records are JSON under these keys; one without a value
deletes. Only `Definitions.apply` changes anything, and it is how all gateways come to know the same.

    exchange/<name>                   {"type", "auto_delete", "internal", "arguments"}
    queue/<name>                      {"topic", "group", "owns_topic", "exclusive", "owner", …}
    binding/["<exchange>", "queue" or "exchange", "<destination>", "<routing key>", "<hash of arguments>"]
                                      {"arguments"}
    gateway/<id>                      {"at_ms"}: a gateway is there, and owns exclusive queues

Arguments are AMQP tables of what JSON has; others are refused when something is declared. Deleting a queue
or an exchange deletes its bindings in memory, and with records of their own in the topic.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

log = logging.getLogger(__name__)

DIRECT, FANOUT, TOPIC, HEADERS = "direct", "fanout", "topic", "headers"
EXCHANGE_TYPES = (DIRECT, FANOUT, TOPIC, HEADERS)
DEFAULT_EXCHANGE = ""
#: those that are always there
BUILT_IN = {
    "": DIRECT,
    "amq.direct": DIRECT,
    "amq.fanout": FANOUT,
    "amq.topic": TOPIC,
    "amq.headers": HEADERS,
    "amq.match": HEADERS,
}
TO_QUEUE, TO_EXCHANGE = "queue", "exchange"
GROUP_PREFIX = "amqp."
TOPIC_NAME_MAX = 249
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_HASH_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where messages are published to."""

    name: str
    type: str
    auto_delete: bool = False
    internal: bool = False
    durable: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A topic that is read by a share group."""

    name: str
    topic: str
    group: str
    #: the topic was made for the queue, and goes with it
    owns_topic: bool = True
    durable: bool = True
    auto_delete: bool = False
    #: the connection that alone may use it, and its gateway
    exclusive: bool = False
    owner: str = ""
    gateway: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ttl_ms(self) -> int | None:
        return self.arguments.get("x-message-ttl")

    @property
    def expires_ms(self) -> int | None:
        return self.arguments.get("x-expires")

    @property
    def dead_letter_exchange(self) -> str | None:
        return self.arguments.get("x-dead-letter-exchange")

    @property
    def dead_letter_routing_key(self) -> str | None:
        return self.arguments.get("x-dead-letter-routing-key")

    @property
    def priorities(self) -> int:
        return int(self.arguments.get("x-max-priority", 0))

    @property
    def delivery_limit(self) -> int | None:
        return self.arguments.get("x-delivery-limit")


@dataclass(frozen=True, slots=True)
class Binding:
    """A way from an exchange to a queue, or to another exchange."""

    exchange: str
    kind: str
    destination: str
    routing_key: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        written = json.dumps(dict(self.arguments), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(written.encode()).hexdigest()[:_HASH_CHARACTERS] if self.arguments else ""
        identity = [self.exchange, self.kind, self.destination, self.routing_key, digest]
        return "binding/" + json.dumps(identity, ensure_ascii=False, separators=(",", ":"))


def topic_name(queue: str) -> str:
    """The topic of a queue: its name where that can be one, else a readable part of it and a hash."""
    if _SAFE.fullmatch(queue) and queue not in (".", "..") and not queue.startswith("__"):
        return queue
    digest = hashlib.sha256(queue.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{_UNSAFE.sub('_', queue)[: TOPIC_NAME_MAX - 20]}.amqp-{digest}"


class Definitions:
    """All that exists, in memory."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {name: Exchange(name, kind) for name, kind in BUILT_IN.items()}
        self.queues: dict[str, Queue] = {}
        #: by exchange, then by their keys
        self.bindings: dict[str, dict[str, Binding]] = {}
        #: what gateways said last, by our own clock
        self.gateways: dict[str, int] = {}
        self.version = 0

    def __repr__(self) -> str:
        return f"<Definitions queues={len(self.queues)} exchanges={len(self.exchanges)}>"

    def apply(self, key: bytes | None, value: bytes | None, now_ms: int) -> None:
        """Take a record of the topic in; one that cannot be read is passed over and told."""
        try:
            kind, _, name = (key or b"").decode().partition("/")
            fields = None if value is None else json.loads(value)
            self._apply(kind, name, fields, now_ms)
        except (ValueError, TypeError, AttributeError) as fault:
            log.warning("a definition cannot be read: %r: %s", key, fault)
        self.version += 1

    def _apply(self, kind: str, name: str, fields: Any, now_ms: int) -> None:
        if kind == "exchange":
            if fields is not None:
                self.exchanges[name] = Exchange(name, **fields)
            elif name not in BUILT_IN:
                self.exchanges.pop(name, None)
                self.bindings.pop(name, None)
                self._unbind(TO_EXCHANGE, name)
        elif kind == "queue":
            if fields is not None:
                self.queues[name] = Queue(name, **fields)
            else:
                self.queues.pop(name, None)
                self._unbind(TO_QUEUE, name)
        elif kind == "binding":
            exchange, to, destination, routing_key, _digest = json.loads(name)
            rows = self.bindings.setdefault(exchange, {})
            if fields is None:
                rows.pop(f"binding/{name}", None)
            else:
                rows[f"binding/{name}"] = Binding(exchange, to, destination, routing_key, fields["arguments"])
        elif kind == "gateway":
            if fields is None:
                self.gateways.pop(name, None)
            else:
                self.gateways[name] = now_ms
        else:
            raise ValueError("of an unknown kind")

    def _unbind(self, kind: str, destination: str) -> None:
        for rows in self.bindings.values():
            for key in [
                key for key, row in rows.items() if row.kind == kind and row.destination == destination
            ]:
                del rows[key]

    def bindings_of(self, kind: str, destination: str) -> list[Binding]:
        return [
            row
            for rows in self.bindings.values()
            for row in rows.values()
            if row.kind == kind and row.destination == destination
        ]


def exchange_record(exchange: Exchange) -> tuple[bytes, bytes]:
    return f"exchange/{exchange.name}".encode(), _written(exchange)


def queue_record(queue: Queue) -> tuple[bytes, bytes]:
    return f"queue/{queue.name}".encode(), _written(queue)


def binding_record(binding: Binding) -> tuple[bytes, bytes]:
    return binding.key.encode(), json.dumps({"arguments": dict(binding.arguments)}).encode()


def _written(row: Exchange | Queue) -> bytes:
    fields = asdict(row)
    del fields["name"]
    return json.dumps(fields, ensure_ascii=False).encode()

"""Hostile request frames, made from a seed.

`FrameForge` first builds real frames: every API and version the broker serves, with fields filled at random
by their type, through kio. From these, and from nothing, it makes hostile ones of several kinds (see
`KINDS`). Names in the frames are those of topics and groups set aside for the fuzz test, so that even a
frame that works does no harm to others.
"""

import dataclasses
import datetime
import io
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import cramjam
from crc32c import crc32c

from tests.chaos.kafka_wire import frame, produce_frame
from tidelog.protocol.apis import API_VERSIONS, APIS, Api
from tidelog.protocol.messages import _message_class
from tidelog.protocol.schema_fields import unwrap
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

TOPICS = ("fuzz-plain", "fuzz-table")
NAMES = (*TOPICS, *TOPICS, "no-such-topic", "", "bad name!", "x" * 300, "\N{SNOWMAN}")
#: requests that would change the topics themselves name another one
DESTRUCTIVE = ("DeleteTopics", "AlterConfigs", "IncrementalAlterConfigs", "CreatePartitions")
VICTIMS = ("fuzz-victim", "fuzz-victim", "no-such-topic", "", "bad name!")
INTEGERS = (0, 0, 0, 1, 1, 2, -1, -2, 5, 100)
EXTREMES = (2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**15 - 1, -(2**15), 2**24)
ATTRIBUTES_POSITION = 21
CRC_POSITION = 17
#: what each bomb unpacks to
BOMB_BYTES = 600 << 20


class Hostile(NamedTuple):
    """One frame to send. `closes` says that no answer is possible: it is incomplete on purpose."""

    kind: str
    api: str
    data: bytes
    closes: bool = False


class FrameForge:
    """Makes frames; the same seed makes the same ones."""

    def __init__(self, seed: int, topic_ids: tuple[uuid.UUID, ...] = ()) -> None:
        self.random = random.Random(seed)
        self._topic_ids = topic_ids
        self._names: tuple[str, ...] = NAMES
        self._entities: dict[tuple[int, int], Any] = {}
        self.versions = [
            (api, version)
            for api in APIS.values()
            for version in range(max(api.min_version, api.served_from), api.max_version + 1)
        ]
        self._bombs: list[bytes] = []

    # -- real frames

    def real(self, api: Api, version: int) -> bytes:
        """A well-formed frame of an API, with its size."""
        if api.key == API_VERSIONS and version == 5:
            body = b"\x05fuzz\x041.0" + b"\x00" + struct.pack(">i", -1) + b"\x00"
        elif api.name == "Produce" and self.random.random() < 0.8:
            return produce_frame(
                self.random.choice(TOPICS), 0, self.batch(), acks=self.random.choice((0, 1, -1))
            )
        else:
            body = self._body(api, version)
        return frame(api.key, version, self.random.getrandbits(31), body, flexible=api.flexible(version))

    def _body(self, api: Api, version: int) -> bytes:
        from kio.serial import entity_writer

        key = (api.key, version)
        if key not in self._entities:
            entity = _message_class(api.module, version, "request")
            self._entities[key] = (entity, entity_writer(entity))
        entity, write = self._entities[key]
        self._names = VICTIMS if api.name in DESTRUCTIVE else NAMES
        out = io.BytesIO()
        write(out, self._instance(entity))
        return out.getvalue()

    def _instance(self, entity: Any) -> Any:
        values: dict[str, Any] = {}
        for field in dataclasses.fields(entity):
            inner, is_array, nullable = unwrap(field.type)
            if nullable and self.random.random() < 0.2:
                values[field.name] = None
            elif is_array:
                count = self.random.choice((0, 1, 1, 1, 2, 3))
                values[field.name] = tuple(self._value(field, inner) for _ in range(count))
            else:
                values[field.name] = self._value(field, inner)
        return entity(**values)

    def _value(self, field: Any, inner: Any) -> Any:
        if dataclasses.is_dataclass(inner):
            return self._instance(inner)
        choice = self.random.choice
        kind = field.metadata.get("kafka_type")
        if kind == "string":
            return choice(self._names)
        if kind == "bytes":
            return self.random.randbytes(choice((0, 1, 20)))
        if kind == "records":
            return self.batch()
        if kind == "bool":
            return choice((True, False))
        if kind == "uuid":
            known = bool(self._topic_ids) and self._names is NAMES and self.random.random() < 0.7
            return choice(self._topic_ids) if known else uuid.UUID(int=self.random.getrandbits(128))
        if kind in ("timedelta_i32", "timedelta_i64"):
            return datetime.timedelta(milliseconds=choice((0, 0, 1, 5)))
        if kind == "float64":
            return choice((0.0, 1.5, -1.0, 1e300))
        number = choice(INTEGERS)
        bits = int(kind.removeprefix("u").removeprefix("int"))
        if self.random.random() < 0.03:
            number = choice([n for n in EXTREMES if -(2 ** (bits - 1)) <= n < 2 ** (bits - 1)] or [0])
        return number

    def batch(self) -> bytes:
        """A record batch that may be appended."""
        count = self.random.choice((1, 1, 3, 10))
        records = [
            Record(i, 1_700_000_000_000, b"key-%d" % self.random.randrange(20), self.random.randbytes(20))
            for i in range(count)
        ]
        return build_batch(records, codec=self.random.choice(list(Codec)))

    # -- hostile frames

    def _any_real(self) -> tuple[Api, bytes]:
        api, version = self.random.choice(self.versions)
        return api, self.real(api, version)

    def valid(self) -> Hostile:
        api, data = self._any_real()
        return Hostile("valid", api.name, data)

    def random_bytes(self) -> Hostile:
        body = self.random.randbytes(self.random.choice((8, 10, 14, 30, 100, 1_000)))
        return Hostile("random bytes", "?", struct.pack(">i", len(body)) + body)

    def random_body(self) -> Hostile:
        """A right header and a body of noise."""
        api, version = self.random.choice(self.versions)
        body = self.random.randbytes(self.random.choice((0, 1, 4, 20, 200, 5_000)))
        data = frame(api.key, version, 7, body, flexible=api.flexible(version))
        return Hostile("random body", api.name, data)

    def bit_flipped(self) -> Hostile:
        api, data = self._any_real()
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            # The size stays, and so does the API key, so that every API is reached.
            place = self.random.randrange(6, len(changed))
            changed[place] ^= 1 << self.random.randrange(8)
        return Hostile("bit-flipped", api.name, bytes(changed))

    def truncated(self) -> Hostile:
        """A real frame cut short; its size says so, or it does not and the rest never comes."""
        api, data = self._any_real()
        end = self.random.randrange(5, len(data)) if len(data) > 5 else len(data)
        if self.random.random() < 0.8:
            return Hostile("truncated", api.name, struct.pack(">i", end - 4) + data[4:end])
        return Hostile("truncated, rest missing", api.name, data[:end], closes=True)

    def overlong(self) -> Hostile:
        api, data = self._any_real()
        tail = self.random.randbytes(self.random.choice((1, 4, 100)))
        size = len(data) - 4 + len(tail)
        return Hostile("overlong", api.name, struct.pack(">i", size) + data[4:] + tail)

    def wrong_header(self) -> Hostile:
        api, data = self._any_real()
        changed = bytearray(data)
        place = self.random.choice((4, 6, 12))
        struct.pack_into(">h", changed, place, self.random.choice((-1, 4, 99, 1_000, 2**15 - 1, -(2**15))))
        return Hostile("wrong header", api.name, bytes(changed))

    def huge_count(self) -> Hostile:
        """A count or length somewhere in a real frame becomes enormous."""
        api, data = self._any_real()
        changed = bytearray(data)
        bomb = self.random.choice(
            (
                b"\x7f\xff\xff\xff",
                b"\xff\xff\xff\xff\x07",
                b"\xff\xff\xff\xff\xff",
                b"\x00\xff\xff\xff",
                b"\x7f\xff",
            )
        )
        place = self.random.randrange(14, max(len(changed) - len(bomb), 15))
        changed[place : place + len(bomb)] = bomb
        return Hostile("huge count", api.name, struct.pack(">i", len(changed) - 4) + bytes(changed[4:]))

    def length_bomb(self) -> Hostile:
        size = self.random.choice((2**31 - 1, 100 << 20, 99 << 20, -1, -(2**31), 0, 1, 7, 9))
        return Hostile("length bomb", "?", struct.pack(">i", size) + self.random.randbytes(9), closes=True)

    def bad_batch(self) -> Hostile:
        """A batch of garbage whose checksum is right."""
        batch = bytearray(self.batch())
        for _ in range(self.random.choice((1, 2, 10))):
            place = self.random.randrange(ATTRIBUTES_POSITION, len(batch))
            batch[place] = self.random.randrange(256)
        if self.random.random() < 0.3:
            del batch[self.random.randrange(61, len(batch) + 1) :]
        if self.random.random() < 0.8:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, CRC_POSITION, crc32c(bytes(batch[ATTRIBUTES_POSITION:])))
        if self.random.random() < 0.1:
            batch += self.batch()
        topic, acks = self.random.choice(TOPICS), self.random.choice((1, -1))
        return Hostile("bad batch", "Produce", produce_frame(topic, 0, bytes(batch), acks=acks))

    def deep_array(self) -> Hostile:
        """A Produce or Fetch frame with a hundred thousand tiny elements."""
        count = self.random.choice((1_000, 20_000))
        if self.random.random() < 0.5:
            topics = b"\x00\x01x\x00\x00\x00\x00" * count
            body = struct.pack(">hhi", -1, 1, 100) + struct.pack(">i", count) + topics
            return Hostile("deep array", "Produce", frame(0, 3, 1, body, flexible=False))
        body = struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0) + struct.pack(">i", count)
        body += b"\x00\x01x\x00\x00\x00\x01\x00\x00\x00\x00" + bytes(12)
        body += b"\x00\x01x\x00\x00\x00\x00" * (count - 1)
        return Hostile("deep array", "Fetch", frame(1, 4, 1, body, flexible=False))

    def decompression_bomb(self) -> Hostile:
        """A small batch for a compacted topic that unpacks to `BOMB_BYTES`."""
        if not self._bombs:
            self._bombs = _bombs()
        batch = self.random.choice(self._bombs)
        return Hostile("decompression bomb", "Produce", produce_frame("fuzz-table", 0, batch))

    def hostile(self) -> Hostile:
        """One hostile frame of any kind but bombs."""
        make: Callable[[], Hostile] = self.random.choices(self._makers(), self.WEIGHTS)[0]
        return make()

    WEIGHTS = (10, 10, 10, 30, 15, 4, 5, 12, 3, 14, 0.05)

    def _makers(self) -> tuple[Callable[[], Hostile], ...]:
        return (
            self.valid,
            self.random_bytes,
            self.random_body,
            self.bit_flipped,
            self.truncated,
            self.overlong,
            self.wrong_header,
            self.huge_count,
            self.length_bomb,
            self.bad_batch,
            self.deep_array,
        )


def _bombs() -> list[bytes]:
    """One batch per codec whose records unpack to `BOMB_BYTES` of zeros."""
    pieces = {
        Codec.GZIP: bytes(cramjam.gzip.compress(bytes(10 << 20), 9)) * (BOMB_BYTES // (10 << 20)),
        Codec.ZSTD: bytes(cramjam.zstd.compress(bytes(100 << 20), 3)) * (BOMB_BYTES // (100 << 20)),
        Codec.LZ4: bytes(cramjam.lz4.compress(bytes(200 << 20))),
        Codec.SNAPPY: _snappy_lie(),
    }
    return [sealed_batch(codec, payload) for codec, payload in pieces.items()]


def _snappy_lie() -> bytes:
    """Raw snappy that announces two gigabytes."""
    return b"\xff\xff\xff\xff\x07" + b"\x00" * 20


def sealed_batch(
    codec: Codec, payload: bytes, count: int = 1, timestamp_ms: int = 1_700_000_000_000
) -> bytes:
    """A batch that says that it has so many records, with this payload and a right checksum."""
    head = struct.pack(">hiqqqhii", codec, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    checked = head + payload
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked

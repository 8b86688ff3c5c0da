"""Values with a registry's schemas, as the console shows them: decoded, or why not.

A schema that could not be had is asked for again after RETRY_SECONDS: a page shows many records, and a
registry that is away must not be waited for with each.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from tidelog.schemas.decoding import Decoder, Reader
from tidelog.schemas.framing import unframed
from tidelog.schemas.registered import SCHEMAS_KEPT_MAX, RegisteredSchemas
from tidelog.schemas.registry_client import RegistryClient, RegistryFault, RegistryUnreachable

ANSWER_BYTES_MAX = 2 << 20
TIMEOUT_SECONDS = 3.0
RETRY_SECONDS = 30.0


class Framed(NamedTuple):
    """A framed value: what kind of schema it has, the value, or why there is none."""

    schema_id: int
    kind: str
    value: Any
    fault: str


class _Refused(NamedTuple):
    fault: str
    until: float


class SchemaRegistry:
    """One registry; safe from any thread."""

    def __init__(self, url: str, user_info: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        client = RegistryClient(url, user_info, TIMEOUT_SECONDS, ANSWER_BYTES_MAX)
        self._decoder = Decoder(RegisteredSchemas(client))
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: OrderedDict[int, _Refused] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SchemaRegistry {self._decoder!r}>"

    def decode(self, data: bytes) -> Framed | None:
        """A value with its schema; None where it is not framed."""
        found = unframed(data)
        if found is None or not found.payload:
            return None
        reader = self._reader(found.schema_id)
        if isinstance(reader, _Refused):
            return Framed(found.schema_id, "", None, reader.fault)
        try:
            return Framed(found.schema_id, reader.kind, reader.read(found.payload), "")
        except (ValueError, RecursionError) as fault:
            return Framed(found.schema_id, reader.kind, None, str(fault)[:200])

    def _reader(self, schema_id: int) -> Reader | _Refused:
        with self._lock:
            refused = self._refused.get(schema_id)
        if refused is not None and self._clock() < refused.until:
            return refused
        soon = self._clock() + RETRY_SECONDS
        try:
            return self._decoder.reader(schema_id)
        except RegistryFault as fault:
            why = f"the registry: {fault.message} ({fault.code})"
            if fault.status == 404:
                why = "the registry does not know it"
        except (RegistryUnreachable, ValueError) as fault:
            # An address that cannot be reached, an answer that is no schema: told in the value's place.
            why = f"the registry: {fault}"
        with self._lock:
            self._refused[schema_id] = _Refused(why[:200], soon)
            self._refused.move_to_end(schema_id)
            while len(self._refused) > SCHEMAS_KEPT_MAX:
                self._refused.popitem(last=False)
            return self._refused[schema_id]

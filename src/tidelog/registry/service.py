"""One instance: it reads the topic, stands for election, writes while it is the primary, and answers.

A change is decided against the state under one lock, written behind the fence, and answered when it was
read back from the topic. Where nobody can say whether a write happened, the instance claims the fence anew,
catches up and decides again: what was written is then found.

Reads come from memory. What is not found is looked for once more after catching up with the topic, so a
schema that any instance has acknowledged is found at every other.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from tidelog.client.client_settings import ClientSettings
from tidelog.registry.decisions import Change, Decisions
from tidelog.registry.election import Identity, Membership, Primary
from tidelog.registry.faults import (
    NO_LEADER,
    NOT_FOUND,
    SCHEMA_TOO_LARGE,
    TIMED_OUT,
    RegistryFault,
)
from tidelog.registry.formats.parsing import Parser
from tidelog.registry.schema_log import SchemaLog, ensure_topic
from tidelog.registry.state import State
from tidelog.registry.writer import Fenced, FencedWriter, OutcomeUnknown, RecordTooLarge

_log = logging.getLogger("tidelog.registry")

TOPIC = "_schemas"
GROUP = "schema-registry"
START_SECONDS_MAX = 60.0
WRITE_SECONDS_MAX = 15.0
READ_SECONDS_MAX = 2.0
#: how long a request waits for this instance to be ready to write, or for a primary to be known
PRIMARY_SECONDS_MAX = 10.0
#: and for the changes before it
QUEUE_SECONDS_MAX = 30.0
TRIES_MAX = 3
LOOK_SECONDS = 5.0
STALE_SECONDS = 20.0
_AGAIN_SECONDS = 0.5

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How an instance is to run."""

    #: for librdkafka; `client` is the same for our own client
    properties: Mapping[str, Any]
    client: ClientSettings
    identity: Identity
    topic: str = TOPIC
    group_id: str = GROUP
    transactional_id: str = ""

    @property
    def fence(self) -> str:
        """The transactional id: of the topic, so that no two registries write to one."""
        return self.transactional_id or f"tidelog-registry-{self.topic}"


class NotPrimary(Exception):
    """Another instance writes; `url` is where, None while nobody knows."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        super().__init__(url)


class Registry:
    """An instance from `start` to `stop`; safe from any thread."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self.state = State()
        self.decisions = Decisions(self.state, Parser())
        self.log = SchemaLog(settings.properties, settings.client, settings.topic, self.state.apply)
        self._membership = Membership(
            settings.client, settings.group_id, settings.identity, self._primary_changed
        )
        self._changed = threading.Condition()
        self._primary = Primary(None, False)
        self._writing = threading.Lock()
        self._writer: FencedWriter | None = None
        self._stopping = False
        self._claims = threading.Thread(target=self._keep_claim, name="registry-claim", daemon=True)
        #: when it last knew everything that was in the topic
        self._caught_up_at = -STALE_SECONDS
        self.changes = 0
        self.claims = 0

    def __repr__(self) -> str:
        return f"<Registry {self.settings.identity.url} primary={self._primary.url} {self.state}>"

    @property
    def primary(self) -> Primary:
        return self._primary

    @property
    def is_ready(self) -> bool:
        """Whether it reached the end of the topic a moment ago, and somebody can write."""
        fresh = time.monotonic() - self._caught_up_at < STALE_SECONDS
        return fresh and self._primary.url is not None

    def start(self) -> None:
        """Read the topic to its end, stand for election; raises RegistryFault, UnfitTopic, KafkaException."""
        ensure_topic(self.settings.properties, self.settings.topic)
        self.log.start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self._look()
                break
            except RegistryFault:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)
        self._claims.start()
        self._membership.start()

    def stop(self) -> None:
        self._stopping = True
        with self._changed:
            self._changed.notify_all()
        self._membership.stop()
        with self._writing:
            self._resign()
        self.log.stop()

    # Reading

    def read(self, operation: Callable[[], Answer]) -> Answer:
        """Answer from memory; what is not found is looked for again after catching up."""
        position = self.log.position
        try:
            return operation()
        except RegistryFault as fault:
            if fault.status != NOT_FOUND:
                raise
            try:
                self.log.caught_up(READ_SECONDS_MAX)
            except RegistryFault:
                raise fault from None
            if self.log.position == position:
                raise
            return operation()

    # Writing

    def change(self, decide: Callable[[Decisions], Change]) -> Any:
        """Decide, write, read back, answer; raises NotPrimary where another one writes, RegistryFault."""
        for _ in range(TRIES_MAX):
            if not self._writing.acquire(timeout=QUEUE_SECONDS_MAX):
                raise RegistryFault(TIMED_OUT, "too many changes wait for the cluster; nothing was written")
            try:
                writer = self._writer
                if writer is not None:
                    return self._written(writer, decide)
            except (Fenced, OutcomeUnknown) as fault:
                _log.warning("a change is decided again: %s: %s", type(fault).__name__, fault)
                self._resign()
            finally:
                self._writing.release()
            self._await_writer()
        raise RegistryFault(TIMED_OUT, "the change could not be written in time; it may be found later")

    def _written(self, writer: FencedWriter, decide: Callable[[Decisions], Change]) -> Any:
        change = decide(self.decisions)
        if change.records:
            try:
                offset = writer.write(change.records)
            except RecordTooLarge as fault:
                raise RegistryFault(
                    SCHEMA_TOO_LARGE,
                    "the cluster takes no record of this size: max.message.bytes of the topic",
                ) from fault
            self.log.wait_for(offset, WRITE_SECONDS_MAX)
            self.changes += 1
        return change.answer

    def _await_writer(self) -> None:
        """Return when this instance can write; raises NotPrimary when another one is to."""
        deadline = time.monotonic() + PRIMARY_SECONDS_MAX
        with self._changed:
            while True:
                if self._primary.url is not None and not self._primary.is_us:
                    raise NotPrimary(self._primary.url)
                if self._primary.is_us and self._writer is not None:
                    return
                seconds = deadline - time.monotonic()
                if seconds <= 0 or self._stopping:
                    raise RegistryFault(NO_LEADER, "no instance can write now; try again")
                self._changed.wait(seconds)

    # Becoming the one who writes

    def _primary_changed(self, primary: Primary) -> None:
        _log.info("the primary is %s%s", primary.url, " (this instance)" if primary.is_us else "")
        with self._changed:
            self._primary = primary
            if not primary.is_us:
                # A write that is under way ends by itself; the fence decides about it.
                writer, self._writer = self._writer, None
                if writer is not None:
                    writer.close()
            self._changed.notify_all()

    def _keep_claim(self) -> None:
        """Whenever this instance is the primary without a claim, make one; look at the topic now and then."""
        while not self._stopping:
            if time.monotonic() - self._caught_up_at > LOOK_SECONDS:
                try:
                    self._look()
                except RegistryFault as fault:
                    _log.info("the topic cannot be looked at: %s", fault.message)
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or (self._primary.is_us and self._writer is None), 1.0
                )
                wanted = self._primary.is_us and self._writer is None and not self._stopping
            if wanted and not self._claim():
                time.sleep(_AGAIN_SECONDS)

    def _look(self) -> None:
        self.log.caught_up(READ_SECONDS_MAX)
        self._caught_up_at = time.monotonic()

    def _claim(self) -> bool:
        settings = self.settings
        try:
            writer = FencedWriter.claim(settings.properties, settings.topic, settings.fence)
            # Whatever a predecessor has written is in the topic now, and nothing of it comes later.
            self.log.caught_up(WRITE_SECONDS_MAX)
        except KafkaException as fault:
            _log.warning("the right to write cannot be claimed: %s", fault.args[0].str())
            return False
        except RegistryFault as fault:
            _log.warning("the topic cannot be read to its end: %s", fault.message)
            return False
        with self._changed:
            if not self._primary.is_us:
                writer.close()
                return True
            self._writer = writer
            self.claims += 1
            self._changed.notify_all()
        _log.info("this instance writes now, from offset %d on", self.log.position)
        return True

    def _resign(self) -> None:
        with self._changed:
            writer, self._writer = self._writer, None
            self._changed.notify_all()
        if writer is not None:
            writer.close()

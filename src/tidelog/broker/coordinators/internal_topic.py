"""An internal topic, in whose partitions the coordinators of one kind keep what they know.

A group or a transactional id belongs to one of its partitions, and the leader of that coordinates it. The
topic is made when somebody needs it.
"""

import logging
from collections.abc import Callable, Sequence

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.controller.commands import CreateTopics
from tidelog.controller.internal_topics import internal_topic
from tidelog.model.errors import ErrorCode, Refused

log = logging.getLogger(__name__)

#: how long a client is kept waiting for an internal topic; then it asks again
CREATION_MS_MAX = 3_000
#: another has made it, or the controller is just not to be reached
_PASSING = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)


def java_string_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 code units, as an unsigned 32-bit number."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        hashed = (31 * hashed + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return hashed


def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of an internal topic that a group or a transactional id belongs to."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partition_count


class InternalTopic:
    """One internal topic as a broker sees it."""

    def __init__(
        self, name: str, count_setting: str, metadata: Metadata, replicas: Replicas, settings: LiveSettings
    ) -> None:
        """`count_setting` says how many partitions the topic will have while it is not there."""
        self.name = name
        self._count_setting = count_setting
        self._metadata = metadata
        self._replicas = replicas
        self._settings = settings
        #: why it could not be made when that was last tried
        self._refusal: str | None = ""

    def __repr__(self) -> str:
        return f"<InternalTopic {self.name}>"

    def leader(self, index: int) -> Partition | None:
        """The partition if this broker leads it."""
        return self._replicas.leader(self.name, index)

    def partition_for(self, key: str) -> int:
        """The partition that a group or a transactional id belongs to."""
        topic = self._metadata.image.topics.get(self.name)
        count = len(topic.partitions) if topic is not None else 0
        return coordinator_partition(key, count or self._settings.get_int(self._count_setting))

    def create(self, then: Callable[[], None]) -> None:
        """Ask the controller for the topic; `then` runs when it has answered, whatever it says."""
        alive_count = max(1, len(self._metadata.image.alive_brokers))
        spec = internal_topic(self.name, self._settings.current, alive_count)

        def made(results: Sequence[object]) -> None:
            [result] = results
            refusal = result.message if isinstance(result, Refused) and result.code not in _PASSING else ""
            if refusal and refusal != self._refusal:
                # Once: clients ask again and again, and what they are told does not say why.
                log.error("%s cannot be made, and who needs it waits: %s", self.name, refusal)
            self._refusal = refusal
            then()

        self._metadata.submit(CreateTopics((spec,)), made, timeout_ms=CREATION_MS_MAX)

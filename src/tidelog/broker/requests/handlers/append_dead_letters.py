"""AppendDeadLetters (key 10002), version 0: a broker has dead letters of a share group appended.

Private to the brokers of one cluster: never advertised, no tagged fields. The body is a topic (a string with
its length as int16), a partition (int32) and one record batch; the answer, when the batch is replicated, an
error code as int32. It is no Produce request because no client's rights and quotas are concerned. Accepted on
the listener that brokers reach each other by, nowhere else.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.protocol.primitives import INT32, MalformedRequest, malformed_if_fails, read_string

if TYPE_CHECKING:
    from tidelog.broker.coordinators.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Handler:
    """Append as leader; the answer is an encoded body."""

    settings: LiveSettings
    shares: "Deferred[Sharing]"

    def handle(self, listener_name: str, body: memoryview) -> DelayedAnswer:
        if listener_name != self.settings.static.inter_broker_listener_name:
            raise MalformedRequest(f"listener {listener_name} is not for brokers")
        topic, position = malformed_if_fails(read_string, body, 0)
        if len(body) < position + INT32.size:
            raise MalformedRequest("a batch of dead letters without a partition")
        index = INT32.unpack_from(body, position)[0]
        batch = memoryview(bytearray(body[position + INT32.size :]))
        delayed = DelayedAnswer()
        self.shares.get().dead_letters.append_here(
            topic, index, batch, lambda error: delayed.answer(INT32.pack(error))
        )
        return delayed

"""DeleteShareGroupState (key 86), version 0: forget what is stored of share partitions.

The group coordinator asks for it when offsets or a group are deleted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.requests.share_state_answers import answer_each
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer

if TYPE_CHECKING:
    from tidelog.broker.coordinators.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Handler:
    """Has the share coordinators of this broker forget."""

    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> DelayedAnswer:
        return answer_each(self.shares.get().coordinator, request)

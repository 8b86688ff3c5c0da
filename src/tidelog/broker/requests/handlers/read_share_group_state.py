"""ReadShareGroupState (key 84), version 0: what is stored of share partitions.

The leader of a partition asks with its leader epoch, and older leaders are fenced from then on.
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
    """Has the share coordinators of this broker tell."""

    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> DelayedAnswer:
        return answer_each(self.shares.get().coordinator, request)

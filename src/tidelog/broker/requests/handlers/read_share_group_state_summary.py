"""ReadShareGroupStateSummary (key 87), versions 0 and 1: where share partitions start.

Unlike ReadShareGroupState it fences nobody, and what is not stored is no error. Version 1 tells how many
records after the start are done with (KIP-1226).
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

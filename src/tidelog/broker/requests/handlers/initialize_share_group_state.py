"""InitializeShareGroupState (key 83), version 0: begin with the state of share partitions.

The group coordinator asks for it before it assigns a partition of a share group. An older state epoch is
FENCED_STATE_EPOCH.

Deliberate difference: a state epoch begins once, so that a repeated request undoes nothing.
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
    """Has the share coordinators of this broker begin."""

    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> DelayedAnswer:
        return answer_each(self.shares.get().coordinator, request)

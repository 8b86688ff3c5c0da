"""WriteShareGroupState (key 85), versions 0 and 1: store what became of records.

An older leader epoch is FENCED_LEADER_EPOCH, an older state epoch FENCED_STATE_EPOCH. Version 1 carries how
many records after the start are done with (KIP-1226).
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
    """Has the share coordinators of this broker store."""

    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> DelayedAnswer:
        return answer_each(self.shares.get().coordinator, request)

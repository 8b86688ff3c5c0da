"""What a record costs in a share partition while many others stay locked: the machine, without any I/O.

    python -m bench.shares [--steps 4000] [--rounds 3]

Each step is one fetch, one acknowledgement and one answer of the share coordinator, of one record or of ten.
The others are held by two members in turns, one record each, so that no two are one run: the worst there is.
"""

import argparse
import sys
import time
import uuid
from collections.abc import Iterable

from tidelog.model.effects import Effect, Send
from tidelog.shares.commands import (
    Acknowledge,
    AcknowledgementBatch,
    Acquire,
    Open,
    ShareCommand,
    StateRead,
    StateWritten,
    WriteShareState,
)
from tidelog.shares.fetched import FetchedBatch
from tidelog.shares.schemas import ShareKey
from tidelog.shares.settings import SharePartitionSettings
from tidelog.shares.share_partition import SharePartition
from tidelog.shares.states import AcknowledgeType, AcquireMode

NOW_MS = 1_000_000
LOCKED = (100, 1_000, 2_000, 4_000, 10_000)
RECORDS_PER_STEP = (1, 10)
#: room for what is locked and what a step takes
LOCKS_MAX = 1_000_000


class Partition:
    """A share partition whose writes succeed at once."""

    def __init__(self, locked: int) -> None:
        settings = SharePartitionSettings(partition_max_record_locks=LOCKS_MAX)
        self.machine = SharePartition(ShareKey("g", uuid.UUID(int=1), 0), 1, settings)
        self._token = 0
        self.do(Open())
        self.do(StateRead(1, 0, ()))
        for number in range(locked):
            self.acquire("ab"[number % 2], 1)

    def do(self, command: ShareCommand) -> None:
        self._carry_out(self.machine.handle(command, NOW_MS))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, WriteShareState):
                self.do(StateWritten(effect.message.number))

    def acquire(self, member: str, count: int) -> int:
        """Lock so many records; the first of them."""
        offset = self.machine.next_fetch_offset
        batches = (FetchedBatch(offset, offset + count - 1),)
        self._token += 1
        self.do(Acquire(self._token, member, count, offset, batches, count, AcquireMode.RECORD_LIMIT))
        return offset

    def step(self, count: int) -> None:
        first = self.acquire("c", count)
        self._token += 1
        batch = AcknowledgementBatch(first, first + count - 1, (AcknowledgeType.ACCEPT,))
        self.do(Acknowledge(self._token, "c", (batch,)))


def microseconds(locked: int, count: int, steps: int) -> float:
    """For each record."""
    partition = Partition(locked)
    began = time.process_time()
    for _ in range(steps):
        partition.step(count)
    seconds = time.process_time() - began
    left = partition.machine.runs.end - partition.machine.delivery_complete_count
    assert left == locked, f"{left} records are not done with"
    return seconds / steps / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    given = parser.parse_args()
    print("locked meanwhile  one record in each step  ten records in each step")
    for locked in LOCKED:
        cells = [
            min(microseconds(locked, count, given.steps) for _ in range(given.rounds))
            for count in RECORDS_PER_STEP
        ]
        print(f"{locked:>16,}  {cells[0]:>20.1f} µs  {cells[1]:>21.2f} µs")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

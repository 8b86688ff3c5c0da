"""A transactional worker of a cluster chaos run, as a process that can be killed at any moment.

    cluster_copier.py BOOTSTRAP TRANSACTIONAL_ID LIFE HISTORY --seed N

It reads the input in a group and writes every record to the same partition of the output, both in one
transaction, one in twenty aborted on purpose. What it is about to do is in its history file before it does
it, and once more with the outcome (history.py: the last word counts), so that a kill leaves no send unknown.

A line on standard output says that it is alive; the last one may say why it ended. One that is stopped by a
signal is silent: whoever started it kills it, and starts another with the same transactional id, which fences
it.
"""

import argparse
import ctypes
import functools
import random
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path

from tests.chaos.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_OFFSET,
    UNKNOWN,
    Recorder,
    Send,
    Transaction,
)
from tests.chaos.transaction_worker import OUTPUT, ConfluentPipe, Fenced, Refused, Taken, Unusable

RECORDS_MAX = 60
TRANSACTION_MS = 20_000
ABORT_CHANCE = 0.05
NEVER = float("inf")
EXIT_DONE, EXIT_GIVEN_UP = 0, 3
PR_SET_PDEATHSIG = 1


class RecordedPipe(ConfluentPipe):
    """A transactional pipe whose writes are noted before and after."""

    def __init__(self, options: argparse.Namespace, recorder: Recorder) -> None:
        options = argparse.Namespace(**vars(options), role="worker", static=False)
        super().__init__(options, TRANSACTION_MS)
        self.life = options.life
        self.recorder = recorder
        self.numbers = count()

    def write(self, tag: str, taken: list[Taken]) -> None:
        for record in taken:
            source, now = record.value.decode(), time.monotonic()
            planned = Send(
                self.life,
                next(self.numbers),
                OUTPUT,
                record.partition,
                f"{tag}|{source}",
                UNKNOWN,
                NO_OFFSET,
                now,
                now,
                transaction=tag,
                source=source,
            )
            self.recorder.write(planned)
            self.producer.produce(
                OUTPUT,
                planned.value,
                partition=planned.partition,
                on_delivery=functools.partial(self._told, planned),
            )

    def _told(self, planned: Send, error: object, message: object) -> None:
        if error is None:
            offset = message.offset()  # type: ignore[attr-defined]
            known = planned._replace(outcome=ACKNOWLEDGED, offset=offset, ended=time.monotonic())
            self.recorder.write(known)


class Copier:
    """Take, write, commit, until told to stop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.life = options.life
        self.random = random.Random(f"{options.seed}/{options.life}")
        self.recorder = Recorder(options.history, immediate=True)
        self.pipe = RecordedPipe(options, self.recorder)
        self.stopped = threading.Event()

    def run(self) -> int:
        try:
            self.pipe.start()
            self.pipe.join()
            for number in count():
                taken: list[Taken] = []
                while not taken:
                    print(flush=True)
                    if self.stopped.is_set():
                        self.pipe.close()
                        return EXIT_DONE
                    taken = self.pipe.take(RECORDS_MAX)
                self._transaction(f"{self.life}/{number}", taken)
        except (Unusable, Fenced, Refused) as reason:
            print(f"{type(reason).__name__}: {reason}", flush=True)
        return EXIT_GIVEN_UP

    def _transaction(self, tag: str, taken: list[Taken]) -> None:
        begun = time.monotonic()
        state = Transaction(tag, UNKNOWN, begun, NEVER, NEVER)
        self.recorder.write(state)
        try:
            self.pipe.begin()
            self.pipe.write(tag, taken)
            if self.random.random() < ABORT_CHANCE:
                self.pipe.flush()
                raise Refused("on purpose")
            state = state._replace(commit_begun=time.monotonic())
            self.recorder.write(state)
            self.pipe.commit(taken)
            self.recorder.write(state._replace(outcome=COMMITTED, ended=time.monotonic()))
        except Refused:
            self.pipe.abort()
            self.recorder.write(state._replace(outcome=ABORTED, ended=time.monotonic()))
            self.pipe.rewind(taken)


def main() -> int:
    # It must not outlive the run that started it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("transactional_id")
    parser.add_argument("life", help="which process of this transactional id it is; the name of its sends")
    parser.add_argument("history", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    copier = Copier(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: copier.stopped.set())
    return copier.run()


if __name__ == "__main__":
    sys.exit(main())

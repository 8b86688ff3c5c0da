"""The way of a command to the controller, wherever it is.

While this broker is the controller, commands are decided here. Otherwise they are sent to the controller over
the peer transport (`ControllerCommand`, an API of brokers among themselves); results that come back are
handed out when this broker's own image shows them. While there is no controller, or the way to it is
broken, a command waits and is sent again, until its deadline: then every item is answered REQUEST_TIMED_OUT.
A command may therefore be decided twice, when an answer was lost on the way.
"""

import logging
from collections.abc import Callable

from tidelog.broker.metadata.command_codec import (
    MalformedCommand,
    NotController,
    decode_answer,
    encode_command,
)
from tidelog.broker.metadata.controller_runtime import ControllerRuntime, Job, Results
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Command
from tidelog.model.errors import ErrorCode, Refused
from tidelog.protocol.apis import CONTROLLER_COMMAND

log = logging.getLogger(__name__)

CONTROLLER_COMMAND_VERSION = 0

SUBMISSIONS_MAX = 10_000
RETRY_MS = 50
_RETRY_TIMER = "submitting retry"


class _Submission:
    """A command that has no results yet."""

    __slots__ = ("attempt", "command", "deadline_ms", "finished", "job", "serial", "then")

    def __init__(
        self, serial: int, command: Command, then: Callable[[Results], None], deadline_ms: int
    ) -> None:
        self.serial = serial
        self.command = command
        self.then = then
        #: in monotonic time
        self.deadline_ms = deadline_ms
        self.attempt = 0
        self.job: Job | None = None
        self.finished = False


class Submitting:
    """Commands of this broker that are under way."""

    def __init__(
        self,
        controller_runtime: ControllerRuntime,
        peers: Peers,
        timers: Timers,
        when_at: Callable[[int, Callable[[], None]], None],
    ) -> None:
        """`when_at(sequence, callback)` calls back when the image has come to a change."""
        self._controller_runtime = controller_runtime
        self._peers = peers
        self._timers = timers
        self._when_at = when_at
        self._controller_id: int | None = None
        self._submissions: dict[int, _Submission] = {}
        self._waiting: list[_Submission] = []
        self._serial = 0

    def __repr__(self) -> str:
        return f"<Submitting controller={self._controller_id} under_way={len(self._submissions)}>"

    def submit(self, command: Command, then: Callable[[Results], None], timeout_ms: int) -> None:
        """Have a command decided, then call `then` with a result for each of its items."""
        if len(self._submissions) >= SUBMISSIONS_MAX:
            refused = Refused(ErrorCode.REQUEST_TIMED_OUT, "too many metadata changes are waiting")
            then((refused,) * command.item_count)
            return
        self._serial += 1
        deadline_ms = self._timers.monotonic_ms() + timeout_ms
        submission = _Submission(self._serial, command, then, deadline_ms)
        self._submissions[submission.serial] = submission
        self._timers.set_after(
            ("submission", submission.serial), timeout_ms, lambda: self._expire(submission)
        )
        self._send(submission)

    def controller_is(self, broker_id: int | None) -> None:
        """Another broker (or None: this one, or nobody) is the controller from now on."""
        moved = broker_id != self._controller_id
        self._controller_id = broker_id
        waiting, self._waiting = self._waiting, []
        if moved:
            # What was sent to the last one may never be answered.
            waiting = [s for s in self._submissions.values() if s.job is None]
        for submission in waiting:
            self._send(submission)

    def close(self) -> None:
        """Answer everything that waits: this broker stops."""
        for submission in list(self._submissions.values()):
            self._refuse(submission, "this broker is stopping")

    # -- sending

    def _send(self, submission: _Submission) -> None:
        if submission.finished:
            return
        submission.attempt += 1
        if self._controller_runtime.active:
            attempt = submission.attempt
            submission.job = self._controller_runtime.submit(
                submission.command, lambda results: self._decided(submission, attempt, results)
            )
            if submission.job is None and not submission.finished:
                self._wait(submission)
        elif self._controller_id is not None:
            self._forward(submission, self._controller_id)
        else:
            self._waiting.append(submission)

    def _decided(self, submission: _Submission, attempt: int, results: Results | None) -> None:
        if submission.finished or attempt != submission.attempt:
            return
        submission.job = None
        if results is None:
            self._wait(submission)
        else:
            self._finish(submission, results)

    def _forward(self, submission: _Submission, controller_id: int) -> None:
        attempt = submission.attempt
        remaining_ms = max(1, submission.deadline_ms - self._timers.monotonic_ms())

        def answered(answer: memoryview | PeerFault) -> None:
            if submission.finished or attempt != submission.attempt:
                return
            if isinstance(answer, PeerFault):
                log.debug(
                    "%s did not reach controller %d: %s", submission.command, controller_id, answer.reason
                )
                self._wait(submission)
                return
            try:
                decided = decode_answer(answer)
            except MalformedCommand as fault:
                log.error("controller %d gave an answer that cannot be read: %s", controller_id, fault)
                self._wait(submission)
                return
            if isinstance(decided, NotController):
                self._wait(submission)
                return
            results, sequence = decided
            self._when_at(sequence, lambda: self._finish(submission, results))

        self._peers.request(
            controller_id,
            CONTROLLER_COMMAND,
            CONTROLLER_COMMAND_VERSION,
            encode_command(submission.command, remaining_ms),
            answered,
            timeout_ms=remaining_ms,
        )

    def _wait(self, submission: _Submission) -> None:
        """Try again a little later, or as soon as another broker is the controller."""
        self._waiting.append(submission)
        if _RETRY_TIMER not in self._timers:
            self._timers.set_after(_RETRY_TIMER, RETRY_MS, self._retry)

    def _retry(self) -> None:
        waiting, self._waiting = self._waiting, []
        for submission in waiting:
            self._send(submission)

    # -- ends

    def _expire(self, submission: _Submission) -> None:
        if self._controller_runtime.active:
            reason = "the metadata could not be stored in time"
        elif self._controller_id is None:
            reason = "no controller was found in time"
        else:
            reason = f"controller {self._controller_id} did not answer in time"
        log.warning("%s is given up: %s", type(submission.command).__name__, reason)
        self._refuse(submission, reason)

    def _refuse(self, submission: _Submission, reason: str) -> None:
        if submission.job is not None:
            submission.job.abandon()
        refused = Refused(ErrorCode.REQUEST_TIMED_OUT, reason)
        self._finish(submission, (refused,) * submission.command.item_count)

    def _finish(self, submission: _Submission, results: Results) -> None:
        if submission.finished:
            return
        submission.finished = True
        del self._submissions[submission.serial]
        self._timers.cancel(("submission", submission.serial))
        submission.then(results)

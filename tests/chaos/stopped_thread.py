"""Stops one thread of another process and lets the others run: a real hang, without a word in the product.

    with StoppedThread(process_id):          # the main thread; in a broker it is the one with the event loop
        ...                                  # its other threads go on: the store's, those that wait for disks
                                             # at the end the thread goes on where it stood

A signal stops all threads of a process. `ptrace` stops one (PTRACE_SEIZE, PTRACE_INTERRUPT); it belongs to
the thread that asked for it, so a process of its own asks, and lets go when its input ends, however that
comes.
Needs Linux, and the right to trace (root, or the same user where that is allowed).

A thread that is stopped while it holds the interpreter's lock stops all the others with it, which is the same
as SIGSTOP and another fault. So it is stopped where it waits for events, tried again until that is so.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.support.child_programs import environment, program

PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
PTRACE_DETACH = 17
WALL = 0x40000000
#: epoll_wait and epoll_pwait: numbers of x86-64, then of arm64
WAITING = {"232", "281", "22"}
ATTEMPTS_MAX = 200
STOP_SECONDS_MAX = 20.0


class CannotStop(OSError):
    """The thread could not be stopped here."""


class StoppedThread:
    """The main thread of a process, or the one named by `thread_id`, stands still until `go_on`."""

    def __init__(self, process_id: int, thread_id: int | None = None) -> None:
        command = [*program("tests.chaos.stopped_thread"), str(process_id), str(thread_id or process_id)]
        self._tracer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert self._tracer.stdout is not None
        answer = self._tracer.stdout.readline().strip()
        if answer != "stopped":
            self.go_on()
            raise CannotStop(answer or "the tracer died")

    def go_on(self) -> None:
        """Let the thread run again; twice is once."""
        assert self._tracer.stdin is not None
        assert self._tracer.stdout is not None
        self._tracer.stdin.close()
        self._tracer.wait(10)
        self._tracer.stdout.close()

    def __enter__(self) -> "StoppedThread":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()


def _ptrace(request: int, thread_id: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread_id, None, None) < 0:
        number = ctypes.get_errno()
        raise CannotStop(number, f"ptrace of thread {thread_id}: {os.strerror(number)}")


def _stop(process_id: int, thread_id: int) -> None:
    """Stop the thread where it waits for events, holding no lock."""
    deadline = time.monotonic() + STOP_SECONDS_MAX
    for attempt in range(ATTEMPTS_MAX):
        _ptrace(PTRACE_SEIZE, thread_id)
        _ptrace(PTRACE_INTERRUPT, thread_id)
        os.waitpid(thread_id, WALL)
        call = Path(f"/proc/{process_id}/task/{thread_id}/syscall").read_text().split()[0]
        if call in WAITING:
            return
        _ptrace(PTRACE_DETACH, thread_id)
        if time.monotonic() > deadline:
            break
        time.sleep(0.001 * (1 + attempt % 7))
    raise CannotStop("the thread never waits for events")


def main() -> None:
    """For the process that traces: stop, say so, wait for the end of the input."""
    try:
        _stop(int(sys.argv[1]), int(sys.argv[2]))
    except OSError as fault:
        print(fault, flush=True)
        return
    print("stopped", flush=True)
    sys.stdin.read()
    _ptrace(PTRACE_DETACH, int(sys.argv[2]))


if __name__ == "__main__":
    main()

"""A broker as the child of a `BrokerProcess`: `python -m tidelog.server.child_broker ID`.

Standard input is a pipe from the parent. Its first line is a JSON object with the settings and how to log;
nothing follows it, and its end means that the parent is gone, however it went: the broker then stops
cleanly, or at once if that takes long. Standard output takes one JSON line when the broker is ready, and
nothing else; the log goes to standard error.
"""

import json
import os
import signal
import sys
import threading

from tidelog.model.settings import BrokerSettings, SettingsError
from tidelog.server.log_format import configure_logging
from tidelog.server.process import ListenError, ReadyInfo, serve
from tidelog.storage.log_directory import LogDirectoryUnusable

PARENT_GONE_GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


def read_instructions() -> dict[str, object]:
    """The parent's one line, read without a buffer that would hide the end of the pipe later."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            raise SystemExit("the parent ended before it said what to run")
        line += piece
    instructions = json.loads(line)
    assert isinstance(instructions, dict)
    return instructions


def end_with_parent() -> None:
    """Block until standard input ends, then stop cleanly, or at once if that takes long."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    timer = threading.Timer(PARENT_GONE_GRACE_SECONDS, lambda: os.kill(os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def be_continued_without_parent() -> None:
    """Ask the kernel (Linux) for SIGCONT when the parent dies: a process that is stopped sees no pipe end."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


class ReadyPipe:
    """Standard output, kept for the one ready line; whatever else is printed goes to the log."""

    def __init__(self) -> None:
        self._descriptor = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def announce(self, info: ReadyInfo) -> None:
        """Tell the parent where to connect. The pipe stays open: its end is how the parent sees ours."""
        ready = {"bootstrap": info.bootstrap, "node_id": info.node_id, "cluster_id": info.cluster_id}
        os.write(self._descriptor, json.dumps(ready).encode() + b"\n")


def main() -> int:
    ready_pipe = ReadyPipe()
    instructions = read_instructions()
    configure_logging(str(instructions["log_format"]), str(instructions["log_level"]))
    overrides = instructions["settings"]
    assert isinstance(overrides, dict)
    be_continued_without_parent()
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    try:
        return serve(BrokerSettings.resolve(overrides), on_ready=ready_pipe.announce)
    except SettingsError as refused:
        print("the settings cannot be used:", *refused.faults, sep="\n  - ", file=sys.stderr)
    except ListenError as fault:
        print(fault.strerror or fault, file=sys.stderr)
    except LogDirectoryUnusable as fault:
        print(fault, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

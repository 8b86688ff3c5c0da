"""The child process of a `RunningBroker`: `python -m tidelog.testing.child '{"setting": "value"}'`.

Writes one JSON line with its address when ready. Standard input is a pipe whose other end the parent holds:
when the parent is gone, however it went, the pipe ends and so does this process.
"""

import json
import logging
import os
import signal
import sys
import threading

from tidelog.model.settings import BrokerSettings
from tidelog.server.process import ReadyInfo, serve

PARENT_GONE_GRACE_SECONDS = 5.0


def end_with_parent() -> None:
    """Block until standard input ends, then stop cleanly, or at once if that takes long."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    timer = threading.Timer(PARENT_GONE_GRACE_SECONDS, lambda: os.kill(os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def announce(info: ReadyInfo) -> None:
    """Tell the parent where to connect."""
    os.write(sys.stdout.fileno(), json.dumps({"bootstrap": info.bootstrap}).encode() + b"\n")


def main() -> int:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    settings = BrokerSettings.resolve(json.loads(sys.argv[1]))
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    return serve(settings, on_ready=announce)


if __name__ == "__main__":
    sys.exit(main())

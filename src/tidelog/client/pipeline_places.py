"""Where pipelines of this machine say how they are, and how others see whether one runs.

    <state>/<name>/lock          held (flock) by the process that runs it, so a dead one is known at once
    <state>/<name>/status.json   what it is and how far, written anew with every report
    <state>/<name>/stop          asks it to stop

Pipelines write these files, the console and the command line read them.
"""

import fcntl
import os
from pathlib import Path

#: names the folder of all pipelines
STATE_VARIABLE = "TIDELOG_PIPELINES"
LOCK_FILE = "lock"
STATUS_FILE = "status.json"
STOP_FILE = "stop"

STARTING, RUNNING, ENDED, STOPPED, FAILED, DIED = "starting", "running", "ended", "stopped", "failed", "died"
#: what a pipeline says of itself while it holds its lock; with the lock free it has died
ALIVE = (STARTING, RUNNING)


def state_directory() -> Path:
    """Where running pipelines are noted, and where checkpoints are when a file does not say."""
    return Path(os.environ.get(STATE_VARIABLE) or Path.home() / ".tidelog" / "pipelines").absolute()


def runs(folder: Path) -> bool:
    """Whether some process holds the lock of the pipeline in a folder.

    Asking takes a shared lock for a moment: who wants to run the pipeline must try more than once.
    """
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False

"""A process with a session of its own, driven over its standard input: one line in, one line out.

commit KEY VALUE [ephemeral]      → committed | conflict | lost | error
get KEY                           → its value | absent
hold                              → holding       begins a write and never finishes it
"""

import sys
import threading
from pathlib import Path

from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.store import Committed, SessionLost, StoreError, Write


def main() -> None:
    path, timeout_ms = Path(sys.argv[1]), int(sys.argv[2])
    store = EmbeddedStore(path, session_timeout_ms=timeout_ms)
    lost = threading.Event()
    store.on_session_lost(lost.set)
    print("open", flush=True)
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "commit":
            key, value, *kind = arguments
            try:
                outcome = store.commit([Write(key, value.encode(), ephemeral=kind == ["ephemeral"])])
                print("committed" if isinstance(outcome, Committed) else "conflict", flush=True)
            except SessionLost:
                print("lost", flush=True)
            except StoreError:
                print("error", flush=True)
        elif word == "get":
            entry = store.get(arguments[0])
            print("absent" if entry is None else entry.value.decode(), flush=True)
        elif word == "lapse":
            store.lapse()
            print("lapsed", flush=True)
        elif word == "told":
            print("told" if lost.wait(10) else "not told", flush=True)
        elif word == "hold":
            store._file._open().execute("BEGIN IMMEDIATE")
            print("holding", flush=True)
        elif word == "close":
            store.close()
            print("closed", flush=True)


if __name__ == "__main__":
    main()

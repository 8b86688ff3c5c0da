"""How many transactions the sink has committed and aborted, told from the processes in which it does.

Spark runs a sink's commit in a Python process of its own on the driver's machine, which nobody can ask. So
each commit and each abort is a line of a file that the driver's environment names, written with one call that
appends; the driver adds the lines up. Without the variable nothing is written: a program of somebody's own.

    {"query": "tidelog-spark-8edc…", "committed": 4, "aborted": 0}
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

EVENTS_VARIABLE = "TIDELOG_SINK_EVENTS"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """Transactions since the start."""

    commits: int = 0
    aborts: int = 0

    def __add__(self, other: "SinkCounts") -> "SinkCounts":
        return SinkCounts(self.commits + other.commits, self.aborts + other.aborts)


def tell(query: str, *, committed: int = 0, aborted: int = 0) -> None:
    """From the sink: transactions of a query were ended. Never fails a commit."""
    path = os.environ.get(EVENTS_VARIABLE)
    if not path or not committed + aborted:
        return
    line = json.dumps({"query": query, "committed": committed, "aborted": aborted}) + "\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as fault:
        log.warning("what the sink has done is not counted: %s", fault)


class SinkEvents:
    """The driver's side: reads what is new in the file, again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._by_query: dict[str, SinkCounts] = {}

    def begin(self) -> None:
        """Count from nothing, in this process and those that it starts."""
        self._path.unlink(missing_ok=True)
        os.environ[EVENTS_VARIABLE] = str(self._path)

    def of(self, query_id: str) -> SinkCounts:
        """The transactions of a streaming query, and of what was written inside its batches."""
        self._read()
        counts = SinkCounts()
        for name, found in self._by_query.items():
            if name.endswith(query_id):
                counts += found
        return counts

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            more = SinkCounts(int(event["committed"]), int(event["aborted"]))
            self._by_query[event["query"]] = self._by_query.get(event["query"], SinkCounts()) + more

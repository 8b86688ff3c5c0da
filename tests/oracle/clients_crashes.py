"""Brokers are killed under clients, and how long until these go on.

Brokers are killed with SIGKILL and started again at once, with the same data, while the next operation is
under way. Whoever leads or coordinates at that moment is asked of the brokers.
"""

import socket
import statistics
import threading
import time

from tests.oracle.clients_session import Json
from tests.oracle.runner import KILL, WHOLE, Runner
from tests.oracle.session import Session, Step
from tests.oracle.systems import System

OPEN_SECONDS_MAX = 90.0
OPEN_PAUSE_SECONDS = 0.02

LEADER, GROUP, TRANSACTION, ALL = "leader", "group coordinator", "transaction coordinator", "all brokers"


class Crashes:
    """What is killed in one session on one system."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._killed_at = 0.0
        self._opened: list[float] = []
        self._watching: threading.Thread | None = None
        self._noted: list[tuple[str, float]] = []

    def kill(self, fields: dict[str, Json]) -> None:
        """Kill who the fields say: `who`, and of which `topic`, `group` or transactional `id`."""
        whose: dict[str, Json] = {
            LEADER: {"api": "Produce", "topics": [{"name": fields.get("topic")}]},
            GROUP: {"api": "Heartbeat", "group_id": fields.get("group")},
            TRANSACTION: {"api": "EndTxn", "transactional_id": fields.get("id")},
        }
        who = fields["who"]
        self._killed_at = time.monotonic()
        self._step(KILL, {"whose": {**whose[who], "called": who}} if who in whose else {})
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def wait_whole(self) -> Json:
        """Until all brokers are there and in sync."""
        return self._step(WHOLE, {})

    def note(self, what: str) -> None:
        """Something went on."""
        self._noted.append((what, time.monotonic()))

    def noted(self) -> list[tuple[str, float, float]]:
        """What went on: seconds since the kill, and since the brokers took connections again."""
        if self._watching is None:
            return []
        self._watching.join()
        opened = self._opened[-1]
        return [(what, at - self._killed_at, max(0.0, at - opened)) for what, at in self._noted]

    def _step(self, api: str, fields: Json) -> Json:
        session = Session(0, (Step("k1", api, 0, fields),), len(self._system.ports), faults=True)
        ((_, answer),) = Runner(self._system, "").run(session)
        return answer

    def _watch(self) -> None:
        deadline = time.monotonic() + OPEN_SECONDS_MAX
        for plain, _ in self._system.ports.values():
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", plain), 1).close()
                    break
                except OSError:
                    time.sleep(OPEN_PAUSE_SECONDS)
        self._opened.append(time.monotonic())


class Recoveries:
    """How long clients took to go on, of many sessions."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def add(self, client: str, system: str, found: list[tuple[str, float, float]]) -> None:
        for what, since_kill, since_open in found:
            rows = self._seconds.setdefault(f"{client}: {what}", {}).setdefault(system, [])
            rows.append((since_kill, since_open))

    def table(self) -> str:
        """Median and longest, side by side."""
        lines = [
            "seconds until the client goes on, median/longest: since the kill, and since the ports are open",
            "| what goes on | Kafka | Tidelog | Kafka, open | Tidelog, open | kills |",
            "|---|---|---|---|---|---|",
        ]
        for what, sides in sorted(self._seconds.items()):
            cells = [
                _cell([pair[place] for pair in sides.get(side, [])])
                for place in (0, 1)
                for side in ("Kafka", "Tidelog")
            ]
            lines.append(f"| {what} | {' | '.join(cells)} | {max(map(len, sides.values()))} |")
        return "\n".join(lines)


def _cell(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f}/{max(seconds):.1f}" if seconds else "-"

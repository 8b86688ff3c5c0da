"""A program for the tests of the supervisor: supervise one broker, and print every event as a JSON line.

`python supervised.py DATA PORT [HEALTHY_SECONDS]`. One broker is enough for lives, deaths and signals.
"""

import json
import sys
from pathlib import Path

from tidelog.server.broker_process import BrokerProcess
from tidelog.server.restart_policy import RestartPolicy
from tidelog.server.supervisor import Supervisor, SupervisorRefused


def main(data: Path, port: int, healthy_seconds: float) -> int:
    settings = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data / "broker-1"),
    }
    process = BrokerProcess(settings, log=data / "broker-1.log")
    supervisor = Supervisor(
        [process],
        data=data,
        report=lambda event: print(json.dumps(event.as_json()), flush=True),
        policy=RestartPolicy(healthy_seconds=healthy_seconds, delay_first_seconds=0.01, failures_max=3),
    )
    try:
        return supervisor.run()
    except SupervisorRefused as refused:
        print(json.dumps({"event": "refused", "message": str(refused)}), flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0))

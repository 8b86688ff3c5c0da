"""A program for the tests of the supervisor: supervise brokers, and print every event as a JSON line.

`python -m tests.unit.server.supervised DATA PORT[,PORT…] HEALTHY_SECONDS`; one broker for each port.
"""

import json
import sys
from pathlib import Path

from tidelog.server import local_cluster
from tidelog.server.broker_process import BrokerProcess
from tidelog.server.restart_policy import RestartPolicy
from tidelog.server.supervisor import Supervisor, SupervisorRefused


def main(data: Path, ports: list[str], healthy_seconds: float) -> int:
    processes = [
        BrokerProcess(
            local_cluster.broker_settings(
                {}, data=data, broker_id=number, listeners=f"PLAINTEXT://127.0.0.1:{port}"
            ),
            log=local_cluster.log_file(data, number),
        )
        for number, port in enumerate(ports, 1)
    ]
    supervisor = Supervisor(
        processes,
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
    sys.exit(main(Path(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3])))

"""Apache Kafka in processes: three KRaft nodes, each broker and controller, to hold beside Tidelog's brokers.

`KafkaCluster` has the methods of `tidelog.testing.cluster.RunningCluster` that a kill test needs.
"""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from tests.support.kafka_nodes import KafkaNodes, quorum_settings
from tidelog.testing.ports import ReservedPort

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class KafkaCluster:
    """Nodes 1 to 3 of Apache Kafka with its default timeouts."""

    def __init__(self, nodes: int = 3, settings: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kafka-cluster-"))
        self.broker_ids = tuple(range(1, nodes + 1))
        self._settings = {**SETTINGS, **(settings or {})}
        self._ports = {number: ReservedPort() for number in self.broker_ids}
        self._controller_ports = {number: ReservedPort() for number in self.broker_ids}
        self._nodes = KafkaNodes(self.folder)

    def __enter__(self) -> "KafkaCluster":
        try:
            for number in self.broker_ids:
                self._nodes.add(number, self._settings_of(number))
                self._nodes.launch(number)
            for number in self.broker_ids:
                self._nodes.wait_port(number, self._ports[number].port)
        except BaseException:
            self.close()
            raise
        return self

    def _settings_of(self, number: int) -> dict[str, str]:
        client, controller = self._ports[number].port, self._controller_ports[number].port
        return {
            **self._settings,
            **quorum_settings(number, {n: one.port for n, one in self._controller_ports.items()}),
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "log.dirs": str(self.folder / f"node-{number}"),
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(number) for number in self.broker_ids)

    def address(self, broker_id: int) -> str:
        return f"127.0.0.1:{self._ports[broker_id].port}"

    def running(self, broker_id: int) -> bool:
        return self._nodes.running(broker_id)

    @property
    def responsive_ids(self) -> tuple[int, ...]:
        return tuple(number for number in self.broker_ids if self.running(number))

    def kill(self, broker_id: int) -> None:
        self._nodes.kill(broker_id)

    def stop(self, broker_id: int) -> None:
        self._nodes.stop(broker_id)

    def start(self, broker_id: int) -> None:
        self._nodes.launch(broker_id)
        self._nodes.wait_port(broker_id, self._ports[broker_id].port)

    def close(self) -> None:
        self._nodes.close()
        for reserved in (*self._ports.values(), *self._controller_ports.values()):
            reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tracebacks(self) -> list[str]:
        """Kafka's logs are not for us to judge."""
        return []

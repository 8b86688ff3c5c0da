"""The real local cluster of a lab: broker processes as tests have them, behind gates by default."""

from collections.abc import Mapping
from pathlib import Path

from tidelog.lab.network import Network
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

#: What a lesson wants and production does not: sessions that end soon, small internal topics.
LAB_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "auto.create.topics.enable": "false",
}


#: One more listener, where users show a password; the lab itself comes by the other and may do all.
USER_SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class LabCluster(RunningCluster):
    """Brokers that advertise their gates; `address` is a broker's own port, `bootstrap` the gates'."""

    def __init__(
        self,
        brokers: int,
        settings: Mapping[str, str] | None = None,
        *,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        gates: bool = True,
        users: bool = False,
        data_directory: Path | None = None,
    ) -> None:
        self.network = Network() if gates else None
        self._gate_ports = {number: ReservedPort() for number in range(1, brokers + 1)} if gates else {}
        self._user_ports = {number: ReservedPort() for number in range(1, brokers + 1)} if users else {}
        own = {
            number: {
                **self._advertised(number),
                **(settings_of or {}).get(number, {}),
            }
            for number in range(1, brokers + 1)
        }
        shared = {**LAB_SETTINGS, **(USER_SETTINGS if users else {}), **(settings or {})}
        super().__init__(brokers, shared, settings_of=own, data_directory=data_directory)
        if self.network is not None:
            for number, gate in self._gate_ports.items():
                self.network.open_gate(number, gate.port, self.port(number))

    def _advertised(self, number: int) -> dict[str, str]:
        if self.network is None:
            return {}
        return {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._gate_ports[number].port}"}

    def _add(self, number: int) -> None:
        super()._add(number)
        if number in self._user_ports:
            settings = self._processes[number].settings
            for name in ("listeners", "advertised.listeners"):
                if name in settings:
                    settings[name] += f",USERS://{self.user_address(number)}"

    def user_address(self, broker_id: int) -> str:
        """`host:port` for users with passwords, where the scenario has any."""
        return f"127.0.0.1:{self._user_ports[broker_id].port}"

    @property
    def bootstrap(self) -> str:
        """What clients connect to: the gates where there are any."""
        return ",".join(self.advertised_address(number) for number in self.broker_ids)

    def advertised_address(self, broker_id: int) -> str:
        """`host:port` that clients of this broker use."""
        if self.network is None:
            return self.address(broker_id)
        return f"127.0.0.1:{self._gate_ports[broker_id].port}"

    def address(self, broker_id: int) -> str:
        """The broker's own port, past its gate: how the lab itself asks."""
        return f"127.0.0.1:{self.port(broker_id)}"

    def close(self) -> None:
        """End the brokers, then their gates."""
        super().close()
        if self.network is not None:
            self.network.close()
        for reserved in (*self._gate_ports.values(), *self._user_ports.values()):
            reserved.close()

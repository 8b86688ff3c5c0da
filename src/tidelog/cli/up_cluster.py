"""`tidelog up --brokers N`: lay out a cluster on this machine and run it under a supervisor."""

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.connection import split_address
from tidelog.cli.errors import CommandError
from tidelog.cli.up_console import start_console
from tidelog.cli.up_gateways import start_gateways, stop_gateways
from tidelog.model.addresses import address_text
from tidelog.model.settings import BrokerSettings, SettingsError
from tidelog.server import local_cluster
from tidelog.server.broker_process import BrokerProcess
from tidelog.server.supervisor import Supervisor, SupervisorEvent, SupervisorRefused

if TYPE_CHECKING:
    from tidelog.cli.secure_setup import SecureSetup

PORT_LAST = 65_535
METRICS_PORT = "tidelog.metrics.port"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Who the brokers are and where they listen; `port` 0 stands for any free ports."""

    brokers: int
    data: Path
    host: str
    port: int
    advertise: str | None = None
    first_id: int = 1
    racks: tuple[str, ...] = ()
    security: "SecureSetup | None" = None

    @property
    def protocol(self) -> str:
        return "PLAINTEXT" if self.security is None else "SASL_SSL"

    def broker_ids(self) -> range:
        return range(self.first_id, self.first_id + self.brokers)

    def overrides(self, shared: Mapping[str, str], ports: list[int]) -> list[dict[str, str]]:
        """The settings of every broker; what the person set for all wins over what a cluster is given."""
        clashing = [name for name in local_cluster.OWN_SETTINGS if name in shared]
        if clashing:
            raise CommandError(
                f"{', '.join(clashing)} cannot be the same for every broker of a cluster",
                "use --data, --host, --port, --advertise, --node-id and --racks, "
                "or 'tidelog broker' for each broker",
            )
        if self.racks and len(self.racks) != self.brokers:
            raise CommandError(
                f"--racks has {len(self.racks)} names for {self.brokers} brokers",
                "give one rack for each broker",
            )
        secured = {} if self.security is None else self.security.broker_settings()
        common = {**local_cluster.replication_settings(self.brokers), **secured, **shared}
        metrics_port = common.pop(METRICS_PORT, "")
        found = []
        for index, (broker_id, port) in enumerate(zip(self.broker_ids(), ports, strict=True)):
            found.append(
                local_cluster.broker_settings(
                    common,
                    data=self.data,
                    broker_id=broker_id,
                    listeners=f"{self.protocol}://{address_text(self.host, port)}",
                    advertised_listeners=self._advertised(index),
                    rack=self.racks[index] if self.racks else None,
                )
            )
            if metrics_port:
                # As with the other ports: consecutive ones, or any that are free.
                is_number = metrics_port.isdigit() and metrics_port != "0"
                found[-1][METRICS_PORT] = str(int(metrics_port) + index) if is_number else metrics_port
        return found

    def _advertised(self, index: int) -> str | None:
        if self.advertise is None:
            return None
        host, port = split_address(self.advertise)
        return f"{self.protocol}://{address_text(host, port + index)}"

    def ports(self) -> list[int]:
        """The ports the brokers listen on."""
        if self.port != 0:
            if self.port + self.brokers - 1 > PORT_LAST:
                raise CommandError(
                    f"there are no {self.brokers} ports from {self.port} on", "use a lower --port"
                )
            return list(range(self.port, self.port + self.brokers))
        # Held together until all are known, so that they differ.
        probes = [socket.create_server((self.host.strip("[]"), 0)) for _ in range(self.brokers)]
        try:
            return [int(probe.getsockname()[1]) for probe in probes]
        finally:
            for probe in probes:
                probe.close()


def check_folder(plan: ClusterPlan) -> None:
    """Make the data folder, and refuse one that belongs to a single broker."""
    try:
        plan.data.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise CommandError(
            f"cannot use {plan.data}: {failure.strerror}", "choose another --data"
        ) from failure
    if (plan.data / "meta.properties").exists():
        raise CommandError(
            f"{plan.data} holds the data of a single broker",
            "choose another --data for the cluster, or start that broker without --brokers",
        )


def run_cluster(
    plan: ClusterPlan, shared: Mapping[str, str], *, log_format: str, log_level: str, as_json: bool
) -> int:
    """Run the cluster until it is stopped; the exit code."""
    started = time.perf_counter()
    overrides = plan.overrides(shared, plan.ports())
    for settings in overrides:
        check_settings(settings)
    check_folder(plan)
    if plan.security is not None:
        from tidelog.cli.secure_setup import store_users

        store_users(plan.security, BrokerSettings.resolve(overrides[0]))
    processes = [
        BrokerProcess(
            settings,
            log=local_cluster.log_file(plan.data, int(settings["node.id"])),
            log_level=log_level,
            log_format=log_format,
        )
        for settings in overrides
    ]
    reporter = Reporter(plan, overrides[0], started, as_json)
    try:
        security = None if plan.security is None else plan.security.client_settings()
        return Supervisor(processes, data=plan.data, report=reporter.report, security=security).run()
    except SupervisorRefused as refused:
        raise CommandError(str(refused), refused.remedy) from refused
    except OSError as failure:
        raise CommandError(
            f"the cluster cannot use {failure.filename or plan.data}: {failure.strerror or failure}",
            "choose another folder with --data",
        ) from failure


def check_settings(overrides: Mapping[str, str]) -> None:
    """Name every fault of the settings before anything is started."""
    try:
        BrokerSettings.resolve(overrides)
    except SettingsError as refused:
        faults = "\n  - ".join(refused.faults)
        raise CommandError(
            f"the settings cannot be used:\n  - {faults}", "docs/settings.md lists every setting"
        ) from refused


class Reporter:
    """Prints what the supervisor reports: sentences for people, or one JSON object per line."""

    def __init__(self, plan: ClusterPlan, settings: Mapping[str, str], started: float, as_json: bool) -> None:
        self._plan = plan
        self._settings = settings
        self._started = started
        self._as_json = as_json

    def report(self, event: SupervisorEvent) -> None:
        if event.kind == "cluster_ready" and self._plan.security is not None:
            self._plan.security.write_client_files(str(event.details["bootstrap"]))
        if self._as_json:
            line = json.dumps(event.as_json(), ensure_ascii=False)
        elif event.kind == "cluster_ready":
            line = self._ready_text(event)
        elif event.broker_id is not None:
            line = f"broker {event.broker_id} | {event.message}"
        else:
            line = event.message
        click.echo(line)
        if event.kind == "cluster_ready":
            bootstrap = str(event.details["bootstrap"])
            start_console(
                bootstrap, self._plan.security, as_json=self._as_json, data_folders=(self._plan.data,)
            )
            start_gateways(bootstrap, self._plan.security, as_json=self._as_json)
        elif event.kind == "stopping":
            stop_gateways()

    def _ready_text(self, event: SupervisorEvent) -> str:
        elapsed_ms = (time.perf_counter() - self._started) * 1000
        bootstrap = event.details["bootstrap"]
        first = event.details["brokers"][0]["address"]
        option = "" if first in ("127.0.0.1:9092", "localhost:9092") else f" --bootstrap {first}"
        replicas = self._settings["default.replication.factor"]
        in_sync = self._settings["min.insync.replicas"]
        lines = [f"Tidelog cluster of {self._plan.brokers} brokers is ready ({elapsed_ms:.0f} ms)"]
        for broker in event.details["brokers"]:
            lines.append(
                f"  broker {broker['id']:<3} {broker['address']}  pid {broker['pid']}  log {broker['log']}"
            )
        lines += [
            f"  bootstrap  {bootstrap}",
            f"  data       {self._plan.data.resolve()}",
            f"  topics     {replicas} replicas, {in_sync} of them in sync for acks=all, by default",
        ]
        if self._plan.security is not None:
            lines += self._plan.security.instructions()
            option = ""
        else:
            lines += ["  next, in another terminal:"]
        lines += [
            f"    tidelog topic create orders --partitions 6{option}",
            f"    tidelog cluster status{option}",
            f"    kill -9 {event.details['brokers'][0]['pid']}    # the others take over, and it comes back",
            "  Ctrl-C stops the cluster cleanly; once more kills it.",
        ]
        return "\n".join(lines)

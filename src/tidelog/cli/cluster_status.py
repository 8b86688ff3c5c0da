"""`tidelog cluster status` and `tidelog cluster brokers`."""

import time
from typing import Any

import click

from tidelog.admin.cluster_state import ClusterState, PartitionState, cluster_state
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table

SHOWN_PARTITIONS_MAX = 20
POLL_SECONDS = 0.25


def broker_rows(state: ClusterState) -> list[dict[str, Any]]:
    """What each broker is, holds and leads."""
    return [
        {
            "id": broker.id,
            "address": broker.address,
            **_host_and_port(broker.address),
            "rack": broker.rack,
            "alive": broker.alive,
            "controller": broker.id == state.controller,
            "replicas": sum(broker.id in partition.replicas for partition in state.partitions),
            "in_sync": sum(broker.id in partition.isr for partition in state.partitions),
            "offline": sum(broker.id in partition.offline_replicas for partition in state.partitions),
            "leads": sum(partition.leader == broker.id for partition in state.partitions),
            "preferred": sum(partition.replicas[:1] == (broker.id,) for partition in state.partitions),
        }
        for broker in state.brokers
    ]


def _host_and_port(address: str | None) -> dict[str, Any]:
    host, _, port = (address or "").rpartition(":")
    return {"host": host.strip("[]") or None, "port": int(port) if port else None}


def summary(state: ClusterState) -> dict[str, Any]:
    """The numbers that say whether a cluster is well."""
    alive = sum(broker.alive for broker in state.brokers)
    found: dict[str, Any] = {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "controller_epoch": None if state.quorum is None else state.quorum.epoch,
        "brokers_alive": alive,
        "brokers_dead": len(state.brokers) - alive,
        "topics": len({partition.topic for partition in state.partitions}),
        "partitions": len(state.partitions),
        "partitions_without_leader": len(state.offline),
        "under_replicated_partitions": len(state.under_replicated),
        "not_led_by_preferred": sum(
            not partition.offline and not partition.led_by_preferred for partition in state.partitions
        ),
        "well": state.well,
    }
    return found


def partition_json(partition: PartitionState) -> dict[str, Any]:
    """One partition for programs."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": None if partition.offline else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline_replicas": list(partition.offline_replicas),
        "under_replicated": partition.under_replicated,
    }


def status_json(state: ClusterState, shown: list[PartitionState]) -> dict[str, Any]:
    quorum = state.quorum
    return {
        **summary(state),
        "quorum": None
        if quorum is None
        else {
            "leader": quorum.leader,
            "epoch": quorum.epoch,
            "high_watermark": quorum.high_watermark,
            "voters": list(quorum.voters),
            "observers": list(quorum.observers),
        },
        "brokers": broker_rows(state),
        "partitions_shown": [partition_json(partition) for partition in shown],
    }


def print_brokers(state: ClusterState) -> None:
    columns = (
        "broker",
        "address",
        "rack",
        "state",
        "controller",
        "replicas",
        "in sync",
        "offline",
        "leads",
        "preferred",
    )
    print_table(
        columns,
        [
            (
                row["id"],
                row["address"],
                row["rack"],
                "alive" if row["alive"] else "dead",
                row["controller"],
                row["replicas"],
                row["in_sync"],
                row["offline"],
                row["leads"],
                row["preferred"],
            )
            for row in broker_rows(state)
        ],
    )


def print_partitions(partitions: list[PartitionState], title: str) -> None:
    """Show partitions, the first few when there are many."""
    click.echo()
    print_table(
        ("topic", "partition", "leader", "epoch", "replicas", "isr", "missing"),
        [
            (
                item.topic,
                item.partition,
                None if item.offline else item.leader,
                item.leader_epoch,
                item.replicas,
                item.isr,
                [broker for broker in item.replicas if broker not in item.isr],
            )
            for item in partitions
        ],
        title=title,
    )


@click.command()
@click.option(
    "--partitions", "all_partitions", is_flag=True, help="Show every partition, not only the sick ones."
)
@click.option("--check", is_flag=True, help="Exit with code 1 unless the cluster is well.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait up to this long until the cluster is well; exit with code 1 if it is not.",
)
@json_option
@connection_options()
def status(
    connection: Connection, all_partitions: bool, check: bool, wait_seconds: float | None, as_json: bool
) -> None:
    """Show whether the cluster is well: brokers, controller, leaders, in-sync replicas, epochs.

    A cluster is well when every broker it knows lives, someone is the controller, every partition has a
    leader and every replica is in sync. Between two steps of a rolling restart, --wait is the step to take.
    'offline' counts the replicas that nobody can use: all of a broker that is dead, and of one that lives
    those whose log directory is not there or has failed: tidelog doctor tells why.

    \b
    Examples:
      tidelog cluster status
      tidelog cluster status --wait 120 && systemctl restart tidelog
      tidelog cluster status --bootstrap kafka.example.com:9092 --json
    """
    state = _state_when_well(connection, time.monotonic() + (wait_seconds or 0.0))
    sick = [partition for partition in state.partitions if partition.offline or partition.under_replicated]
    shown = list(state.partitions) if all_partitions else sick
    if as_json:
        print_json(status_json(state, shown))
    else:
        print_fields((name.replace("_", " "), value) for name, value in summary(state).items())
        if state.quorum is not None:
            print_fields([("metadata voters", state.quorum.voters), ("observers", state.quorum.observers)])
        click.echo()
        print_brokers(state)
        if all_partitions:
            print_partitions(shown, "every partition")
        elif sick:
            several = (
                f"the first {SHOWN_PARTITIONS_MAX} of {len(sick)}" if len(sick) > SHOWN_PARTITIONS_MAX else ""
            )
            print_partitions(sick[:SHOWN_PARTITIONS_MAX], f"partitions that are not well {several}".rstrip())
    if not state.well and (check or wait_seconds is not None):
        raise click.exceptions.Exit(1)


def _state_when_well(connection: Connection, deadline: float) -> ClusterState:
    """The state once the cluster is well, or at the deadline; brokers may still be starting."""
    while True:
        try:
            state = cluster_state(connection.cluster_admin())
        except CommandError:
            if time.monotonic() >= deadline:
                raise
        else:
            if state.well or time.monotonic() >= deadline:
                return state
        time.sleep(POLL_SECONDS)


@click.command()
@json_option
@connection_options()
def brokers(connection: Connection, as_json: bool) -> None:
    """List the brokers, alive and dead, with what each holds and leads.

    'preferred' counts the partitions whose first replica the broker is: what it should lead.

    \b
    Examples:
      tidelog cluster brokers
      tidelog cluster brokers --json | jq '.[] | select(.alive | not) | .id'
    """
    state = cluster_state(connection.cluster_admin())
    if as_json:
        print_json(broker_rows(state))
    else:
        print_brokers(state)

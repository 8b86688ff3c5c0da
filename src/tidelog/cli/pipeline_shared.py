"""The pipelines that a cluster's team shares: found, and asked to stop, from any machine."""

import socket
import time
from typing import TYPE_CHECKING

from tidelog.cli.connection import Connection
from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from tidelog.admin.shared_pipelines import SharedPipeline
    from tidelog.client.cluster import Cluster

POLL_SECONDS = 0.5
NAMED = "'tidelog pipeline list --shared' names those that are shared"


def shared_list(connection: Connection) -> "list[SharedPipeline]":
    """All of the cluster, by name."""
    from tidelog.admin.shared_pipelines import shared_pipelines

    admin = connection.cluster_admin()
    return admin.asked("the shared pipelines cannot be read", shared_pipelines)


def shared_pipeline(connection: Connection, name: str) -> "SharedPipeline":
    """One of them."""
    for found in shared_list(connection):
        if found.name == name:
            return found
    raise CommandError(f"no pipeline {name} is shared in this cluster", NAMED)


def stop_shared(connection: Connection, name: str, wait_seconds: float) -> None:
    """Ask a run to stop, and wait until it says that it has."""
    from tidelog.admin.shared_pipelines import SharedPipelines

    found = shared_pipeline(connection, name)
    if found.seen(time.time() * 1000).get("state") not in _alive():
        raise CommandError(f"pipeline {name} is not running", NAMED)

    def ask(cluster: "Cluster") -> None:
        SharedPipelines(cluster).ask_to_stop(found, socket.gethostname())

    connection.cluster_admin().asked(f"pipeline {name} cannot be asked to stop", ask)
    deadline = time.monotonic() + wait_seconds
    while True:
        now = shared_pipeline(connection, name)
        if now.run != found.run or now.seen(time.time() * 1000).get("state") not in _alive():
            return
        if time.monotonic() >= deadline:
            raise CommandError(
                f"pipeline {name} on {found.host} was asked to stop and has not in {wait_seconds:g} s",
                f"wait longer, or see 'tidelog pipeline status {name} --shared'",
            )
        time.sleep(POLL_SECONDS)


def _alive() -> tuple[str, ...]:
    from tidelog.client.pipeline_places import ALIVE

    return ALIVE

"""The console's own client of a cluster (`admin.cluster_admin`), and what pages alone ask with it.

Short time limits: a page does not wait for a broker that hangs. Where a cluster does not answer or does not
know a question, callers get a ConsoleFault to show in place of the figures.
"""

from collections.abc import Mapping
from functools import partial

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.client.api_keys import FETCH
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, known_code
from tidelog.console.faults import explained
from tidelog.model.errors import ErrorCode
from tidelog.protocol import fetch_client

REQUEST_TIMEOUT_MS = 5_000
BATCH_BYTES_MAX = 1 << 20


def cluster_admin(bootstrap: str, properties: Mapping[str, str]) -> ClusterAdmin:
    """What asks and changes the cluster; its trouble is a ConsoleFault."""
    options = {
        "client.id": "tidelog-console",
        **properties,
        "bootstrap.servers": bootstrap,
        "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "socket.connection.setup.timeout.ms": "3000",
        "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
    }
    return ClusterAdmin(partial(ClientSettings.from_options, options), explained)


def batch_at(admin: ClusterAdmin, topic: str, partition: int, offset: int) -> bytes:
    """The bytes from the batch that holds an offset on, about BATCH_BYTES_MAX of them."""

    def ask(cluster: Cluster) -> bytes:
        link = cluster.link_to(cluster.leader_of(topic, partition))
        version = link.version_of(FETCH, fetch_client.CONSUMER_VERSION_MIN, fetch_client.CONSUMER_VERSION_MAX)
        request = fetch_client.consumer_request(
            topic,
            partition,
            offset,
            BATCH_BYTES_MAX,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=BATCH_BYTES_MAX,
            isolation=0,
        )
        body = fetch_client.encode_request(version, request)
        answer = fetch_client.decode_response(version, link.receive(link.send(FETCH, version, body)))
        for row in answer.partitions:
            if known_code(row.error) != ErrorCode.NONE:
                raise ClientFault(known_code(row.error).name)
            return bytes(row.records)
        return b""

    return admin.asked(f"the batch at {topic}-{partition} offset {offset} cannot be read", ask)

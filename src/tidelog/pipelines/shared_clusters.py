"""One client for all tasks, or all commits, that a Python process of Spark runs, one after the other.

Spark uses its Python workers again, so connections, the versions that brokers speak and who leads are known
from the second micro-batch on. A client belongs to one thread; whoever has left requests unanswered closes
it.
"""

import threading

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster

_of_thread = threading.local()


def cluster_of(settings: ClientSettings) -> Cluster:
    """The cluster of these settings, the same for everything that runs in this thread."""
    clusters: dict[ClientSettings, Cluster] = _of_thread.__dict__.setdefault("clusters", {})
    if settings not in clusters:
        clusters[settings] = Cluster(settings)
    return clusters[settings]

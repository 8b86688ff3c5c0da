"""Topics that are not shown to whoever asks: for what must not be done without knowing of all of them.

A broker leaves topics out that one may not describe, and says nothing of it. So it is asked for a topic that
nobody has: only who may describe any topic is told that there is none. One that is denied to somebody who may
see the others is found in the log directories, which tell of all replicas.
"""

from collections.abc import Sequence
from uuid import uuid4

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import ClusterState, ask_metadata
from tidelog.admin.log_dirs import describe_at
from tidelog.client.cluster import Cluster
from tidelog.client.faults import LinkFault
from tidelog.model.errors import ErrorCode


def hides_topics(admin: ClusterAdmin, state: ClusterState) -> bool:
    """Whether there are topics, or may be, that are not in the state of the cluster."""
    known = {partition.topic for partition in state.partitions}
    stored = {topic for broker in state.alive_racks for topic in _stored_at(admin, broker)}
    asked = [uuid4().hex, *sorted(stored - known)]
    return admin.asked("topics cannot be described", lambda cluster: _any_denied(cluster, asked))


def _stored_at(admin: ClusterAdmin, broker: int) -> set[str]:
    """The topics of which a broker has replicas; one that cannot be reached is passed over."""

    def ask(cluster: Cluster) -> set[str]:
        try:
            places = describe_at(cluster.link_to(broker), broker, None)
        except LinkFault:
            return set()
        return {size.topic for _, sizes in places for size in sizes}

    return admin.asked(f"broker {broker} did not describe its log dirs", ask)


def _any_denied(cluster: Cluster, names: Sequence[str]) -> bool:
    answer = ask_metadata(cluster.any_link(), tuple({"name": name} for name in names))
    return any(topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in answer.topics)

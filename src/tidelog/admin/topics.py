"""Topics of any Kafka cluster: which there are, made, deleted, given more partitions.

Changes go to the controller, as old clusters ask, and are sent once: where an answer is lost, nobody knows
whether the change was made, and a second request would be refused for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.admin.cluster_state import ask_metadata
from tidelog.admin.snapshot import NO_LEADER, PartitionView, TopicView
from tidelog.client.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption, LinkFault
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import STRING_BYTES_MAX

_BY_DEFAULT = -1
#: CreateTopics from here on takes the cluster's own numbers
_FIRST_WITH_DEFAULTS = 4
_MOST = {"num_partitions": 2**31 - 1, "count": 2**31 - 1, "replication_factor": 2**15 - 1}
#: codes of a topic that is there all the same
_THERE = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)


def topic_views(admin: ClusterAdmin, names: Iterable[str] | None = None) -> dict[str, TopicView]:
    """The topics of these names, or all, that there are and that may be seen; asking creates none."""
    asked = None if names is None else tuple({"name": name} for name in dict.fromkeys(names))
    return admin.asked(
        "the topics cannot be listed", lambda cluster: views_of(ask_metadata(cluster.any_link(), asked))
    )


def topic_view(admin: ClusterAdmin, name: str) -> TopicView:
    """One topic, asked for now; one that there is not, or that may not be seen, is an error."""
    what = f"topic {name!r} cannot be described"

    def ask(cluster: Cluster) -> TopicView:
        (row,) = ask_metadata(cluster.any_link(), ({"name": name},)).topics
        if row.error_code not in _THERE:
            check(row, what)
        return _view(row)

    return admin.asked_once(what, ask)


def views_of(metadata: Any) -> dict[str, TopicView]:
    """The topics of an answer to Metadata, by name."""
    rows = sorted(metadata.topics, key=lambda row: str(row.name))
    return {str(row.name): _view(row) for row in rows if row.error_code in _THERE}


def _view(row: Any) -> TopicView:
    return TopicView(
        str(row.name),
        tuple(
            PartitionView(
                int(found.partition_index),
                max(int(found.leader_id), NO_LEADER),
                tuple(int(broker) for broker in found.replica_nodes),
                tuple(int(broker) for broker in found.isr_nodes),
            )
            for found in sorted(row.partitions, key=lambda found: int(found.partition_index))
        ),
    )


def create_topic(
    admin: ClusterAdmin,
    name: str,
    partitions: int | None = None,
    replication_factor: int | None = None,
    configs: Mapping[str, str] | None = None,
    *,
    validate_only: bool = False,
    if_not_exists: bool = False,
) -> bool:
    """Make a topic; what is not given is the cluster's own. With `validate_only` it is only checked.

    Whether it was made: with `if_not_exists` one that is there already is no error.
    """
    wanted = {
        "name": name,
        "num_partitions": _BY_DEFAULT if partitions is None else partitions,
        "replication_factor": _BY_DEFAULT if replication_factor is None else replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    lowest = _FIRST_WITH_DEFAULTS if partitions is None or replication_factor is None else 2
    fields = {"topics": [wanted], "validate_only": validate_only}
    what = f"topic {name!r} was not created"
    exempt = (ErrorCode.TOPIC_ALREADY_EXISTS,) if if_not_exists else ()
    (row,) = _changed(admin, what, CREATE_TOPICS, fields, "topics", lowest, 7, exempt)
    return bool(row.error_code == ErrorCode.NONE)


def delete_topic(admin: ClusterAdmin, name: str) -> None:
    """Delete a topic and all its records."""
    what = f"topic {name!r} was not deleted"
    _changed(admin, what, DELETE_TOPICS, {"topic_names": [name]}, "responses", 1, 5)


def add_partitions(admin: ClusterAdmin, name: str, partitions: int) -> None:
    """Have a topic have so many partitions."""
    what = f"topic {name!r} did not get {partitions} partitions"
    wanted = {"name": name, "count": partitions, "assignments": None}
    fields = {"topics": [wanted], "validate_only": False}
    _changed(admin, what, CREATE_PARTITIONS, fields, "results", 0, 3)


def _changed(
    admin: ClusterAdmin,
    what: str,
    key: int,
    fields: dict[str, Any],
    rows: str,
    lowest: int,
    highest: int,
    exempt: Sequence[ErrorCode] = (),
) -> Sequence[Any]:
    """Send a change, again only where nothing was done; the rows of the answer, none of which is an error."""
    with admin.explained(what):
        _check_sizes(fields)
    lost: list[LinkFault] = []

    def ask(cluster: Cluster) -> Sequence[Any]:
        link = _controller(cluster)
        # The broker gives up first, so that it can say so.
        timeout_ms = cluster.settings.request_timeout_ms * 9 // 10
        try:
            answer = link.request(key, {**fields, "timeout": timeout_ms}, lowest=lowest, highest=highest)
        except LinkFault as fault:
            cluster.forget_places()
            lost.append(fault)
            return ()
        found: Sequence[Any] = getattr(answer, rows)
        for row in found:
            if row.error_code == ErrorCode.NOT_CONTROLLER:
                check(row, what)
        return found

    answered = admin.asked(what, ask)
    with admin.explained(what):
        if lost:
            raise lost[0]
        for row in answered:
            if row.error_code not in exempt:
                check(row, what)
    return answered


def _check_sizes(fields: Mapping[str, Any]) -> None:
    """Refuse what a request cannot say."""
    for topic in fields.get("topics", ()):
        for name, limit in _MOST.items():
            if topic.get(name, 0) > limit:
                raise BadOption(f"{topic[name]} is more than {limit}, the most that there can be")
        texts = (topic["name"], *(text for entry in topic.get("configs", ()) for text in entry.values()))
        if any(len(text.encode()) > STRING_BYTES_MAX for text in texts):
            raise BadOption(f"a name or a value has more than {STRING_BYTES_MAX} bytes")


def _controller(cluster: Cluster) -> Link:
    link = cluster.any_link()
    controller = int(ask_metadata(link, ()).controller_id)
    return link if controller < 0 else cluster.link_to(controller)

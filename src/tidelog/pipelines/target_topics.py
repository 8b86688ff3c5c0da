"""Topics that a pipeline writes and that are not there yet, made like those it reads."""

from collections.abc import Callable, Mapping

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, Refusal, known_code
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import METADATA

_PREFIX = "kafka."
CREATE_TOPICS = 19
TIMEOUT_MS = 30_000


class CannotMakeTopic(ClientFault):
    """The cluster refused to make a topic."""


def client_settings(kafka: Mapping[str, str]) -> ClientSettings:
    """The settings for the wire client, of options with the prefix `kafka.`."""
    return ClientSettings.from_options({name.removeprefix(_PREFIX): text for name, text in kafka.items()})


def partition_counts(kafka: Mapping[str, str], topics: list[str]) -> dict[str, int]:
    """How many partitions topics have."""
    with Cluster(client_settings(kafka)) as cluster:
        return {topic: len(cluster.topic(topic).partitions) for topic in topics}


def make_missing(
    source: Mapping[str, str],
    target: Mapping[str, str],
    names: Mapping[str, str],
    counts: Mapping[str, int] | None = None,
    settings: Callable[[str], Mapping[str, str]] = lambda topic: {},
) -> dict[str, dict[str, str]]:
    """Make the target topics that are missing, with as many partitions as their source.

    `names` says for each topic of the source what it is called in the target; `counts`, how many partitions
    the source has, if it is not a topic of a cluster; `settings`, what the copy of a source's topic gets.
    Returns what was made, with its settings. Raises CannotMakeTopic.
    """
    with Cluster(client_settings(target)) as cluster:
        missing = sorted(set(names.values()) - set(cluster.topics(names.values())))
        if not missing:
            return {}
        topics = {name: topic for topic, name in names.items() if name in missing}
        sizes = partition_counts(source, list(topics.values())) if counts is None else counts
        made: dict[str, dict[str, str]] = {}
        for name, topic in topics.items():
            made[name] = dict(settings(topic))
            try:
                create_topics(cluster, {name: sizes[topic]}, made[name])
            except Refusal as refusal:
                raise CannotMakeTopic(str(refusal)) from refusal
        return made


def create_topics(
    cluster: Cluster, partitions: Mapping[str, int], configs: Mapping[str, str] | None = None
) -> None:
    """Make topics with so many partitions and the cluster's own replication; raises Refusal.

    One that is there already will do: somebody else may have made it meanwhile, or an earlier try of ours.
    """
    new = [
        {
            "name": name,
            "num_partitions": count,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        for name, count in partitions.items()
    ]

    def create() -> None:
        brokers = cluster.any_link().request(METADATA, {"topics": []}, lowest=4, highest=12)
        link = cluster.link_to(int(brokers.controller_id))
        answer = link.request(CREATE_TOPICS, {"topics": new, "timeout": TIMEOUT_MS}, lowest=4, highest=5)
        for row in answer.topics:
            if known_code(row.error_code) not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise Refusal(row.error_code, f"creating {row.name}", row.error_message)

    cluster.persist(create)

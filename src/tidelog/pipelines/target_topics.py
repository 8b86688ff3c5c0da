"""Topics that a pipeline writes and that are not there yet, made like those it reads."""

from collections.abc import Mapping

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault

_PREFIX = "kafka."
SECONDS_MAX = 30.0


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
) -> None:
    """Make the target topics that are missing, with as many partitions as their source.

    `names` says for each topic of the source what it is called in the target; `counts`, how many partitions
    the source has, if it is not a topic of a cluster. Raises CannotMakeTopic.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({name.removeprefix(_PREFIX): text for name, text in target.items()})
    try:
        present = admin.list_topics(timeout=SECONDS_MAX).topics
        missing = {topic: name for topic, name in names.items() if name not in present}
        if not missing:
            return
        sizes = partition_counts(source, list(missing)) if counts is None else counts
        new = [NewTopic(name, sizes[topic], -1) for topic, name in missing.items()]
        for name, future in admin.create_topics(new).items():
            try:
                future.result(SECONDS_MAX)
            except KafkaException as fault:
                if fault.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise CannotMakeTopic(f"topic {name}: {fault.args[0].str()}") from fault
    except KafkaException as fault:
        raise CannotMakeTopic(str(fault.args[0].str())) from fault

"""The topics that a plan reads and writes, as values: what can be asked about them before Spark starts.

A pipeline says so while it is planned (`reads`, `writes`); `cluster_checks` asks the cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.pipelines.pipeline_options import Options
from tidelog.pipelines.problems import Where
from tidelog.pipelines.run_settings import RunSettings

#: options that say what is read, in place of a topic's name
_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True)
class TopicUse:
    """One topic, read or written by a plan."""

    #: None where a pattern, or each row, says which
    topic: str | None
    where: Where
    #: of the topic's cluster, with the prefix `kafka.`
    kafka: Mapping[str, str] = field(repr=False)
    #: of the source or the sink
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    written: bool = False
    #: the consumer group that shows the lag
    group: str | None = None
    #: made when it is missing
    made: bool = False
    #: a topic of the run's cluster whose records keep the number of their partition
    partitions_of: str | None = None
    #: whether records never have a key
    keyless: bool = False


def reads(
    run: RunSettings,
    topics: str,
    where: Where,
    options: Mapping[str, str] | None = None,
    query: str | None = None,
) -> tuple[TopicUse, ...]:
    """The topics that a source names, with commas between; `query` is the one that shows its lag."""
    chosen = dict(options or {})
    given = next((text for name, text in chosen.items() if name.lower() == "group.id"), None)
    group = given or (None if query is None else run.group_of(query))
    by_option = {name.lower(): text for name, text in chosen.items() if name.lower() in _SUBSCRIPTIONS}
    if by_option and "subscribe" not in by_option:
        return (TopicUse(None, where, run.kafka, chosen, group=group),)
    names = by_option.get("subscribe", topics).split(",")
    return tuple(TopicUse(name.strip(), where, run.kafka, chosen, group=group) for name in names)


def writes(
    kafka: Mapping[str, str],
    topics: Iterable[str | None],
    where: Where,
    options: Mapping[str, str] | None = None,
    *,
    keyless: bool = False,
) -> tuple[TopicUse, ...]:
    """Topics that a sink writes, of the cluster that the client options name."""
    chosen = dict(options or {})
    return tuple(
        TopicUse(topic, where, kafka, chosen, written=True, keyless=keyless) for topic in topics if topic
    )


def read_option(
    run: RunSettings, options: Options, name: str = "topic", query: str | None = None
) -> tuple[TopicUse, ...]:
    """What an option of a ready pipeline has it read, with the options of its `source`."""
    return reads(run, options[name], ("options", name), options["source"], query)


def write_option(run: RunSettings, options: Options, *, keyless: bool = False) -> tuple[TopicUse, ...]:
    """What the option `to` of a ready pipeline has it write, with the options of its `sink`."""
    return writes(run.kafka, (options["to"],), ("options", "to"), options["sink"], keyless=keyless)

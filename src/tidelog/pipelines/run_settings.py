"""What every pipeline has, whatever it does: a name, a place for its progress, a trigger, a cluster.

`RunSettings` is a frozen value. Ready pipelines take from it the client options (`kafka`), the checkpoint of
each of their queries, the trigger and the dead-letter topic.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_places import state_directory
from tidelog.pipelines.pipeline_options import duration

#: what can run a pipeline
SPARK, LOCAL = "spark", "local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class TriggerKind(Enum):
    """When a query runs its micro-batches."""

    AVAILABLE_NOW = "available_now"
    INTERVAL = "interval"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Trigger:
    """`available_now` (what is there, then end), an interval like '10 seconds', or `continuous`.

    Continuous means one micro-batch after the other, without a pause and without an end.
    """

    kind: TriggerKind
    interval: str | None = None

    @classmethod
    def read(cls, text: Any) -> "Trigger":
        """Read the words of a file; raises BadOption."""
        word = str(text).strip().lower().replace("-", "_")
        if word in ("available_now", "once"):
            return cls(TriggerKind.AVAILABLE_NOW)
        if word == "continuous":
            return cls(TriggerKind.CONTINUOUS)
        try:
            interval = duration(word)
            # Spark has none of these: their length depends on when they begin.
            if interval.rstrip("s").endswith(("month", "year")):
                raise ValueError(text)
            return cls(TriggerKind.INTERVAL, interval)
        except ValueError:
            raise BadOption(
                f"trigger is available_now, continuous or an interval like '10 seconds', not {text!r}"
            ) from None

    def on(self, writer: Any) -> Any:
        """A DataStreamWriter with this trigger."""
        if self.kind is TriggerKind.AVAILABLE_NOW:
            return writer.trigger(availableNow=True)
        if self.kind is TriggerKind.INTERVAL:
            return writer.trigger(processingTime=self.interval)
        return writer

    @property
    def words(self) -> str:
        if self.kind is TriggerKind.AVAILABLE_NOW:
            return "what is there now, then it ends"
        if self.kind is TriggerKind.INTERVAL:
            return f"every {self.interval}"
        return "one micro-batch after the other, until it is stopped"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The part of a definition that all pipelines share."""

    name: str
    trigger: Trigger = Trigger(TriggerKind.CONTINUOUS)
    #: options of the source and the sink, with the prefix `kafka.`
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: the folder of checkpoints; each query has a folder of its own in it
    checkpoint: str = ""
    dead_letters: str | None = None
    master: str = "local[*]"
    #: what runs it: Spark, or this process
    engine: str = SPARK
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: whether the team sees it, from every machine (`shared_run`)
    shared: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadOption(f"a pipeline's name has letters, digits, '.', '_' and '-', not {self.name!r}")
        if not self.checkpoint:
            object.__setattr__(self, "checkpoint", str(state_directory() / self.name / "checkpoint"))

    @property
    def bootstrap(self) -> str:
        return self.kafka.get("kafka.bootstrap.servers", "")

    def checkpoint_of(self, query: str) -> str:
        """The checkpoint folder of one of the pipeline's queries."""
        return f"{self.checkpoint.rstrip('/')}/{query}"

    def group_of(self, query: str) -> str:
        """The consumer group that shows the lag of one of the pipeline's queries."""
        return f"tidelog-pipeline-{self.name}-{query}"


def kafka_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Client properties, written with or without the prefix, as options of the source and the sink."""
    return {
        name if name.startswith("kafka.") else f"kafka.{name}": str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in given.items()
    }

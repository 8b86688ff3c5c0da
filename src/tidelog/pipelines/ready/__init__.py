"""Ready pipelines: a name, options, and a plan; one module for each, imported when it is asked for.

A module has one object called `pipeline` that is a `ReadyPipeline`. Importing it must not need Spark: that is
imported in `start`.
"""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.run_settings import LOCAL, SPARK, RunSettings
from tidelog.pipelines.work import Work

#: the kind in a file, and its line in the list
READY: Mapping[str, str] = {
    "archive": "A topic into Parquet files by date, exactly once, small files merged.",
    "replay": "Archived records, or a time range of a topic, into a topic as they were.",
    "mirror": "Topics into topics of the same or another cluster, exactly once.",
    "table": "The latest value of each key of a topic, as a table that is kept up to date.",
    "aggregate": "Event-time windows over a topic, by SQL.",
    "join": "Two topics joined by key and time.",
    "dedupe": "A topic without the records that came before.",
    "order": "Many partitions into one, in the order of event time.",
    "jdbc-source": "Rows of a database into a topic.",
    "jdbc-sink": "A topic into a table of a database.",
    "file-source": "Files of a folder into a topic.",
    "file-sink": "A topic into files.",
    "iceberg": "A topic into an Iceberg table, exactly once, without Spark.",
}
#: of kinds that do not run on Spark alone: what they run on, the usual first
_ENGINES: Mapping[str, tuple[str, ...]] = {"iceberg": (LOCAL,)}


class ReadyPipeline(Protocol):
    """What the object `pipeline` of a module in this package has."""

    name: str
    summary: str
    options: tuple[Option, ...]

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """What would run; without Spark and without side effects. Raises BadOption."""

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start what was planned, and return at once; `spark` is None where this process runs it."""


def engines_of(kind: str | None) -> tuple[str, ...]:
    """What can run a kind, the usual first; None is a flow."""
    return _ENGINES.get(kind or "", (SPARK,))


def ready_pipeline(kind: str) -> ReadyPipeline:
    """The ready pipeline of a kind; raises BadOption."""
    name = kind.replace("_", "-")
    if name not in READY:
        near = difflib.get_close_matches(name, READY, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(READY)}"
        raise BadOption(f"there is no ready pipeline {kind!r}; {meant}")
    module = importlib.import_module(f"tidelog.pipelines.ready.{name.replace('-', '_')}")
    found: ReadyPipeline = module.pipeline
    return found

"""What a pipeline is going to do, as a value: built without Spark, shown, and carried out by `start`.

A plan is shown to people and kept in files, so nothing that shows one has secrets in it (`client.masking`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.masking import masked, masked_text, secrets_of
from tidelog.pipelines.lake.uses import LakeUse
from tidelog.pipelines.pipeline_options import Options
from tidelog.pipelines.run_settings import SPARK, RunSettings
from tidelog.pipelines.table_checks import Statement
from tidelog.pipelines.topic_settings import SettingsCopy
from tidelog.pipelines.topic_uses import TopicUse

#: the name in `Plan.more` of what a flow was planned from
DEFINITION = "definition"


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """One query of a plan, in words."""

    name: str
    reads: str
    writes: str
    does: tuple[str, ...] = ()
    #: what is promised about the output
    delivery: str = "exactly once"
    #: None for a batch job
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to run. `more` is what was worked out while planning, for `start`."""

    kind: str
    run: RunSettings
    options: Options
    queries: tuple[PlannedQuery, ...]
    notes: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    #: the topics that are read and written, to ask the cluster about
    uses: tuple[TopicUse, ...] = ()
    #: SQL, columns and types, to ask Spark's analyser about
    statements: tuple[Statement, ...] = ()
    #: the Iceberg table that is written, to look at before it is
    lake: LakeUse | None = None
    #: the topics whose settings are copied, and to which
    copies: tuple[SettingsCopy, ...] = ()

    def __repr__(self) -> str:
        return f"<Plan {self.run.name} {self.kind} queries={len(self.queries)}>"

    def lines(self) -> Iterator[str]:
        """The plan in words, a line at a time."""
        yield from map(masked_text, self._lines())

    def _lines(self) -> Iterator[str]:
        run = self.run
        yield f"pipeline {run.name} ({self.kind})"
        yield f"  cluster       {run.bootstrap or '-'}"
        yield f"  trigger       {run.trigger.words}"
        table = None if self.lake is None else f"table {self.lake.dead_letters}"
        words = run.dead_letters or table or "none: a record that fails stops the pipeline"
        yield f"  dead letters  {words}"
        yield (
            f"  Spark         {run.master}" if run.engine == SPARK else "  engine        local: this process"
        )
        if run.shared:
            yield "  shared        with everybody who reads the cluster's list of pipelines"
        for query in self.queries:
            yield f"  query {query.name}"
            yield f"    reads       {query.reads}"
            for step in query.does:
                yield f"    then        {step}"
            yield f"    writes      {query.writes}"
            yield f"    delivery    {query.delivery}"
            if query.checkpoint is not None:
                yield f"    checkpoint  {query.checkpoint}"
        for note in self.notes:
            yield f"  note: {note}"

    def explain(self) -> str:
        return "\n".join(self.lines())

    def as_json(self) -> dict[str, Any]:
        """The plan for programs."""
        document: dict[str, Any] = {
            "name": self.run.name,
            "kind": self.kind,
            "bootstrap": self.run.bootstrap,
            "trigger": self.run.trigger.interval or self.run.trigger.kind.value,
            "dead_letters": self.run.dead_letters,
            "engine": self.run.engine,
            "master": self.run.master,
            "options": {name: value for name, value in self.options.items() if value is not None},
            "queries": [
                {
                    "name": query.name,
                    "reads": query.reads,
                    "does": list(query.does),
                    "writes": query.writes,
                    "delivery": query.delivery,
                    "checkpoint": query.checkpoint,
                }
                for query in self.queries
            ],
            "notes": list(self.notes),
        }
        shown: dict[str, Any] = masked(document)
        return shown

    def secrets(self) -> frozenset[str]:
        """What must not be told, whoever tells it: the text of a failure may repeat a setting."""
        definition = self.more.get(DEFINITION)
        parts = () if definition is None else (*definition.sources, *definition.sinks)
        settings = (self.options, self.run.kafka, self.run.spark, *(part.options for part in parts))
        return frozenset(secret for one in settings for secret in secrets_of(one))

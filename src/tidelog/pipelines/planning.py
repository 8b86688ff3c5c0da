"""From a definition to a plan, and from a plan to work, whether it is a ready pipeline or a flow."""

from dataclasses import replace
from typing import Any

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines.begun_with import begun, identity_of
from tidelog.pipelines.definition import Definition
from tidelog.pipelines.failure_causes import cause_of
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.flow import FLOW, plan_flow, start_flow
from tidelog.pipelines.pipeline_options import check_options
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.problems import Misplaced, at, told_with_lines
from tidelog.pipelines.ready import ready_pipeline
from tidelog.pipelines.run_settings import SPARK
from tidelog.pipelines.spark_cluster import cluster_notes
from tidelog.pipelines.spark_versions import installed_spark, limits_note
from tidelog.pipelines.work import Work


class CannotStart(ClientFault):
    """Spark refuses a query: SQL that is none, a column that is not there."""


def make_plan(definition: Definition) -> Plan:
    """What would run; raises BadOption, with the line of the file where there is one."""
    with told_with_lines(definition.origin, definition.lines):
        return _plan(definition)


def _plan(definition: Definition) -> Plan:
    if definition.run.master.startswith("sc://"):
        raise Misplaced(
            f"master {definition.run.master} is Spark Connect, and a pipeline is its own driver: name the "
            "cluster itself (spark://…, yarn, k8s://…), or run the pipeline where the server is",
            ("master",),
        )
    if definition.kind is None:
        plan = plan_flow(definition)
    else:
        ready = ready_pipeline(definition.kind)
        with at("options"):
            plan = ready.plan(check_options(ready.options, definition.options, of=ready.name), definition.run)
    if not plan.run.bootstrap:
        raise BadOption("which cluster? Set bootstrap: host:port")
    if plan.run.engine != SPARK:
        return plan
    paths = [plan.options.get("path"), *(sink.path for sink in definition.sinks)]
    warnings = cluster_notes(plan.run, [str(path) for path in paths if path is not None])
    limits = [name for source in definition.sources for name in source.options]
    limits += [name for name, value in plan.options.items() if value is not None]
    warnings += limits_note(dict.fromkeys(limits), installed_spark())
    return replace(plan, notes=(*plan.notes, *warnings))


def start_here(plan: Plan) -> list[Work]:
    """Start what was planned in this process; raises what pipelines raise."""
    return ready_pipeline(plan.kind).start(None, plan)


def start(spark: Any, plan: Plan) -> list[Work]:
    """Start what was planned, in a checkpoint of its own; raises CannotStart, and what pipelines raise."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    ready = None if plan.kind == FLOW else ready_pipeline(plan.kind)
    identity = identity_of(plan, () if ready is None else ready.options)
    try:
        with begun(HadoopFiles(spark, plan.run.checkpoint), plan, identity):
            return start_flow(spark, plan) if ready is None else ready.start(spark, plan)
    except (PySparkException, Py4JError) as fault:
        raise CannotStart(f"Spark cannot run this: {cause_of(str(fault))}") from fault

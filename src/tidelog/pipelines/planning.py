"""From a definition to a plan, and from a plan to work, whether it is a ready pipeline or a flow."""

from dataclasses import replace
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.definition import Definition
from tidelog.pipelines.flow import FLOW, plan_flow, start_flow
from tidelog.pipelines.pipeline_options import check_options
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.ready import ready_pipeline
from tidelog.pipelines.spark_cluster import cluster_notes
from tidelog.pipelines.work import Work


def make_plan(definition: Definition) -> Plan:
    """What would run; raises BadOption."""
    if definition.kind is None:
        plan = plan_flow(definition)
    else:
        ready = ready_pipeline(definition.kind)
        plan = ready.plan(check_options(ready.options, definition.options, of=ready.name), definition.run)
    if not plan.run.bootstrap:
        raise BadOption("which cluster? Set bootstrap: host:port")
    paths = [plan.options.get("path"), *(sink.path for sink in definition.sinks)]
    warnings = cluster_notes(plan.run, [str(path) for path in paths if path is not None])
    return replace(plan, notes=(*plan.notes, *warnings))


def start(spark: Any, plan: Plan) -> list[Work]:
    """Start what was planned."""
    if plan.kind == FLOW:
        return start_flow(spark, plan)
    return ready_pipeline(plan.kind).start(spark, plan)

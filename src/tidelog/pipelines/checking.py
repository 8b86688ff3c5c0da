"""Everything that can be known of a plan before it starts: what its cluster, Spark's analyser and its
folders say.

The first two are asked at the same time, for one waits for brokers and the other for a JVM. Nothing is
changed.
"""

from concurrent.futures import ThreadPoolExecutor

from tidelog.pipelines.cluster_checks import check_uses
from tidelog.pipelines.folder_checks import check_folders
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.problems import Findings
from tidelog.pipelines.table_checks import check_statements
from tidelog.pipelines.topic_settings import check_copies
from tidelog.pipelines.topic_uses import writes


def check_plan(plan: Plan) -> Findings:
    """What is wrong with a plan, and what a person should know."""
    if plan.lake is not None:
        # Arrow and pyiceberg are for those who write tables, and are imported by one thread.
        from tidelog.pipelines.lake.checks import check_lake
    with ThreadPoolExecutor(1, thread_name_prefix="plan-checks") as threads:
        asked = threads.submit(check_cluster_of, plan)
        said = check_folders(plan) + check_statements(plan.run, plan.statements)
        if plan.lake is not None:
            said += check_lake(plan.lake)
        return asked.result() + said


def check_cluster_of(plan: Plan) -> Findings:
    """What the clusters of a plan say."""
    dead_letters = writes(plan.run.kafka, (plan.run.dead_letters,), ("dead_letters",))
    found = check_uses((*plan.uses, *dead_letters))
    # Topics that are not there are told already.
    return found if found.problems else found + check_copies(plan.copies, plan.run.checkpoint)

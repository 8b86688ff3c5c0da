"""What a checkpoint was begun with, so that a pipeline with other options does not go on in its middle.

    <checkpoint>/begun-with-<kind>.json      {"to": "<digest>", "topic": "<digest>", "bootstrap": "<digest>"}

Some options say what is read and what is written (`Option.identity`). Positions in a checkpoint are of those
alone: with another target the records before the position would be missing there, with another source the
position means nothing. Clusters are told apart by their id, not by the brokers that somebody names. Rates,
limits and triggers may change at will.

Only digests are kept, and passwords are not even in those, so the file gives nothing away and a new password
is no other pipeline. A name that is on one side only, because a version added it, is no difference.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption
from tidelog.client.masking import masked
from tidelog.pipelines import postgres
from tidelog.pipelines.file_store import FileStore
from tidelog.pipelines.pipeline_options import Option
from tidelog.pipelines.plan import DEFINITION, Plan
from tidelog.pipelines.target_topics import client_settings

#: the name in `Plan.more` of the client options of a cluster that is not the run's
TARGET_CLUSTER = "target"


class OtherOptions(BadOption):
    """The checkpoint is of a pipeline that read or wrote something else."""


def cluster_id(kafka: Mapping[str, str]) -> str | None:
    """Which cluster this is, None for one that does not say."""
    with Cluster(client_settings(kafka)) as cluster:
        cluster.topics([])
        return cluster.cluster_id


def identity_of(
    plan: Plan, table: Iterable[Option], ask: Callable[[Mapping[str, str]], str | None] = cluster_id
) -> dict[str, str]:
    """The digests of what makes a plan's checkpoint its own, by name."""
    values = {option.name: plan.options[option.name] for option in table if option.identity}
    if (definition := plan.more.get(DEFINITION)) is not None:
        values |= {f"sources.{source.name}.topic": source.topic for source in definition.sources}
    clusters = {"bootstrap": plan.run.kafka}
    if TARGET_CLUSTER in plan.more:
        clusters["to_bootstrap"] = plan.more[TARGET_CLUSTER]
    values |= {name: found for name, kafka in clusters.items() if (found := ask(kafka)) is not None}
    return {name: _digest(name, value) for name, value in values.items()}


def _digest(name: str, value: Any) -> str:
    shown = postgres.shown(value) if name == "url" else masked(value, name)
    text = json.dumps(shown, sort_keys=True)
    return hashlib.sha256(f"{name}={text}".encode()).hexdigest()[:32]


def begun(store: FileStore, plan: Plan, identity: Mapping[str, str]) -> AbstractContextManager[None]:
    """Go on with a checkpoint, or begin it: what is inside starts the pipeline. Raises OtherOptions.

    When the start fails, a checkpoint that was not there before is not begun.
    """
    if all(query.checkpoint is None for query in plan.queries):
        return _beginning(store, None, "")
    path = f"{plan.run.checkpoint.rstrip('/')}/begun-with-{plan.kind}.json"
    text = store.read(path)
    before: dict[str, str] = {} if text is None else json.loads(text)
    other = sorted(name for name in before if name in identity and before[name] != identity[name])
    if other:
        raise OtherOptions(
            f"pipeline {plan.run.name} was begun with another {' and another '.join(other)}, and its "
            f"checkpoint {plan.run.checkpoint} is of that. Begin anew with another --name or another "
            f"--checkpoint; or delete {path}, to go on from the old position with the new options"
        )
    wanted = json.dumps({**identity, **before}, sort_keys=True)
    return _beginning(store, None if wanted == text else wanted, path, new=text is None)


@contextmanager
def _beginning(store: FileStore, text: str | None, path: str, *, new: bool = False) -> Iterator[None]:
    if text is not None:
        store.write(path, text)
    started = False
    try:
        yield
        started = True
    finally:
        if new and not started:
            store.delete(path)

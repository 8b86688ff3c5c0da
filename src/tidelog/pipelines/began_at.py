"""Where a pipeline began to read, noted in its checkpoint before it reads anything.

    <checkpoint>/_began-at/<digest of what is read, and from where>.json      {"orders": {"0": 42}}

Spark notes where a micro-batch ends. Where the first one begins it asks the source, and asks again when the
driver died in that batch; `latest`, or a time, is another place by then, and what lies between would be
missing. Queries that read a source side by side must begin at one place too: a bad record between the
beginnings of a query and of the one for its dead letters would be in neither output. So the answer is kept,
also if the start fails: queries may have begun before it did. `earliest` and offsets need no note.

A checkpoint that has got further without a note, because it is older or was begun with other words, goes on
as it is: Spark does not ask where it begins.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.pipelines.file_store import FileStore
from tidelog.pipelines.offset_planning import Offsets, to_json
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import (
    EARLIEST_TEXT,
    OFFSETS_STRATEGY,
    STARTING,
    TIMESTAMP_STRATEGY,
    ReadBoundary,
    SourceOptions,
)


def notes_folder(checkpoint: str) -> str:
    """Where the beginnings of a pipeline's sources are."""
    return f"{checkpoint.rstrip('/')}/_began-at"


def with_noted_start(
    options: Mapping[str, str],
    checkpoint: str,
    open_store: Callable[[], FileStore],
    connect: Callable[[ClientSettings], AbstractContextManager[Cluster]] = Cluster,
) -> dict[str, str]:
    """Options of a streaming source that start where the first start of this checkpoint did."""
    wanted = SourceOptions.read(options, streaming=True)
    if not _moves(wanted.starting):
        return dict(options)
    store = open_store()
    with connect(wanted.client) as cluster:
        offsets = QueryOffsets(wanted, cluster)
        # A cluster says who it is when it is asked for its topics.
        offsets.partitions()
        path = f"{notes_folder(checkpoint)}/{_digest(wanted, cluster.cluster_id)}.json"
        noted = store.read(path)
        if noted is None:
            if any("/commits/" in f"/{file.path}" for file in store.files(checkpoint)):
                return dict(options)
            noted = json.dumps(to_json(_start(offsets)))
            store.write(path, noted)
    replaced = {*STARTING, OFFSETS_STRATEGY, TIMESTAMP_STRATEGY}
    kept = {name: value for name, value in options.items() if name.lower() not in replaced}
    # What is new since then is read from its beginning.
    return {**kept, "startingOffsets": noted, OFFSETS_STRATEGY: EARLIEST_TEXT}


def _moves(position: ReadBoundary) -> bool:
    """Whether the same words can mean another place later, other than by retention."""
    if position.offsets is not None:
        return LATEST in position.offsets.values()
    return position.word != EARLIEST_TEXT


def _start(offsets: QueryOffsets) -> Offsets:
    given = offsets.options.starting.offsets or {}
    # The beginning of a log stays a word: retention moves it.
    return {
        where: EARLIEST if given.get(where) == EARLIEST else offset
        for where, offset in offsets.starting().items()
    }


def _digest(wanted: SourceOptions, cluster_id: str | None) -> str:
    read = (cluster_id, wanted.topics, wanted.pattern, wanted.assigned, wanted.client.isolation_level)
    return hashlib.sha256(repr((read, wanted.starting, wanted.timestamp_strategy)).encode()).hexdigest()[:32]

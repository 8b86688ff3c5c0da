"""Where a pipeline began to read, noted in its checkpoint before it reads anything.

    <checkpoint>/_began-at/<digest of what is read, and from where>      {"orders": {"0": 42}}

Spark notes where a micro-batch ends. Where the first one begins it asks the source, and asks again when the
driver died in that batch; `latest`, or a time, is another place by then, and what lies between would be
missing. Queries that read a source side by side must begin at one place too: a bad record between the
beginnings of a query and of the one for its dead letters would be in neither output. So the answer is kept.
`earliest` needs no note.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.pipelines.file_store import FileStore
from tidelog.pipelines.offset_planning import to_json
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import (
    EARLIEST_TEXT,
    OFFSETS_STRATEGY,
    STARTING,
    TIMESTAMP_STRATEGY,
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
    if wanted.starting.word == EARLIEST_TEXT:
        return dict(options)
    path, store = f"{notes_folder(checkpoint)}/{_digest(wanted)}.json", open_store()
    noted = store.read(path)
    if noted is None:
        with connect(wanted.client) as cluster:
            noted = json.dumps(to_json(QueryOffsets(wanted, cluster).starting()))
        store.write(path, noted)
    replaced = {*STARTING, OFFSETS_STRATEGY, TIMESTAMP_STRATEGY}
    kept = {name: value for name, value in options.items() if name.lower() not in replaced}
    # What is new since then is read from its beginning.
    return {**kept, "startingOffsets": noted, OFFSETS_STRATEGY: EARLIEST_TEXT}


def _digest(wanted: SourceOptions) -> str:
    read = (wanted.topics, wanted.pattern, wanted.assigned, wanted.client.isolation_level)
    return hashlib.sha256(repr((read, wanted.starting, wanted.timestamp_strategy)).encode()).hexdigest()[:32]

"""Micro-batches into a topic in any output mode, for queries of your own:

    query = totals.writeStream.outputMode("update").foreachBatch(to_topic({"topic": "totals", …})).start()

Spark lets sinks written in Python append only. What `foreachBatch` writes is exactly once as well: the query
and the number of the micro-batch name what is written, so a batch that is repeated adds nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.client.faults import BadOption

QUERY_ID_PROPERTY = "sql.streaming.queryId"


def to_topic(options: Mapping[str, Any]) -> Callable[[Any, int], None]:
    """What `foreachBatch` takes; the options are those of the sink. Raises BadOption for a version."""
    given = {name: str(value) for name, value in options.items()}
    if any(name.lower() == "txnversion" for name in given):
        raise BadOption("txnVersion is the number of the micro-batch here; leave it out")
    named = next((value for name, value in given.items() if name.lower() == "txnappid"), None)

    def write(batch: Any, batch_id: int) -> None:
        application = named or _query_id(batch.sparkSession)
        chosen = {**given, "txnAppId": application, "txnVersion": str(batch_id)}
        batch.write.format("tidelog").options(**chosen).mode("append").save()

    return write


def _query_id(session: Any) -> str:
    context = getattr(session, "sparkContext", None)
    if context is None:
        raise BadOption(
            "Spark Connect does not tell the id of the query: name it with txnAppId, another for each query, "
            "and keep the name as long as its checkpoint"
        )
    application = context.getLocalProperty(QUERY_ID_PROPERTY)
    assert application, "Spark names the query in foreachBatch"
    return str(application)

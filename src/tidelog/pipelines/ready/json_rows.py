"""Topics of JSON objects as rows, and rows as records: what several ready pipelines share.

Rows have the fields of a schema and the record's own columns with `_` before their names (`_key`,
`_timestamp`, …). A value that does not fit the schema is a dead letter where the run has a topic for them,
and stops the query where it has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.pipelines.dead_letters import decoded, start_dead_letters
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import stream_topic
from tidelog.pipelines.work import Work

OWN_PREFIX = "_"


@dataclass(frozen=True, slots=True)
class JsonRows:
    """A frame, and the query of its dead letters if there is one."""

    frame: Any
    dead: list[Work]

    def without_own_columns(self) -> Any:
        """Only the fields of the schema."""
        return self.frame.select(*(name for name in self.frame.columns if not name.startswith(OWN_PREFIX)))


def json_rows(
    spark: Any, run: RunSettings, query: str, topic: str, options: Mapping[str, str], schema: str
) -> JsonRows:
    """Read a topic for a query and decode its values; dead letters are the query `<query>-dead`."""
    frame = stream_topic(spark, run, query, topic, options)
    if run.dead_letters is None:
        return JsonRows(_strict_rows(frame, schema), [])
    guard = f"{query}-dead"
    again = stream_topic(spark, run, guard, topic, options, beside=True)
    dead = start_dead_letters(decoded(again, "json", schema).dead, run, guard)
    return JsonRows(decoded(frame, "json", schema).good, [] if dead is None else [dead])


def _strict_rows(frame: Any, schema: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    place = F.concat_ws("-", "topic", "partition", "offset")
    nothing = F.raise_error(F.concat(F.lit("there is no object to decode at "), place))
    # FAILFAST raises for what is not JSON of the schema; no value, and JSON's null, make null.
    data = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    own = [F.col(name).alias(OWN_PREFIX + name) for name in frame.columns if name != "value"]
    # The condition has values decoded even if the query uses no field of them.
    rows = frame.select(data.alias("_data"), *own, F.when(data.isNull(), nothing).alias("_nothing"))
    return rows.where("_nothing IS NULL").select("*", "_data.*").drop("_data", "_nothing")


def as_records(frame: Any, key_columns: Sequence[str], value_columns: Sequence[str] | None = None) -> Any:
    """Each row as a record: a JSON object of its columns; the key is a column's text, or JSON of several."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = frame.columns if value_columns is None else value_columns
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in columns)))
    key = F.lit(None).cast("string")
    if len(key_columns) == 1:
        key = F.col(key_columns[0]).cast("string")
    elif key_columns:
        key = F.to_json(F.struct(*key_columns))
    return frame.select(key.alias("key"), value.alias("value"))

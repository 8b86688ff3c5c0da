"""Records that cannot be processed, as frames: told from the others while the pipeline goes on.

`marked` says of each record of a frame whether it can be decoded, and `decoded` splits by that: into those
that can be, and those that cannot. `as_dead_letters` makes records for the dead-letter topic: key and value
as they were, and headers that say what failed, where the record is from, and the stack. Works in streaming
and in batch frames.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.admin import dead_letter_headers as names
from tidelog.pipelines.query_metrics import DEAD_LETTERS
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import batch_application, start_to_topic, write_to_topic
from tidelog.pipelines.work import Work

#: the record that a row was made of
ORIGIN = "_origin"
REASON = "_reason"
STACK = "_stack"
_CORRUPT = "_corrupt"
_DATA = "_data"
_ORIGIN_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


class Decoded(NamedTuple):
    """A frame split in two. `dead` has the columns `_origin`, `_reason` and `_stack`."""

    good: Any
    dead: Any


def with_origin(frame: Any) -> Any:
    """A frame of records with the record itself as one more column."""
    from pyspark.sql import functions as sql

    columns = [
        sql.col(name) if name in frame.columns else sql.lit(None).cast(_HEADERS_TYPE).alias(name)
        for name in _ORIGIN_COLUMNS
    ]
    return frame.withColumn(ORIGIN, sql.struct(*columns))


_HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def decoded(
    frame: Any, decode: str, schema: str | None = None, expect: Mapping[str, str] | None = None
) -> Decoded:
    """Split the records of a topic by whether they can be decoded and pass the rules; see `marked`."""
    both = marked(frame, decode, schema, expect)
    return Decoded(good_rows(both).drop(ORIGIN), dead_rows(both))


def good_rows(both: Any) -> Any:
    """The rows without a reason, and with the record that each was made of."""
    return both.where(f"{REASON} IS NULL").drop(REASON, STACK)


def strict_rows(both: Any) -> Any:
    """The rows where none may have a reason: one that has raises when it is read."""
    from pyspark.sql import functions as sql

    origin = sql.col(ORIGIN)
    place = sql.concat_ws("-", origin["topic"], origin["partition"], origin["offset"])
    words = sql.concat_ws(" ", sql.lit("record"), place, sql.col(REASON), sql.lit("(set dead_letters)"))
    fails = sql.raise_error(words).isNull()
    passes = sql.when(sql.col(REASON).isNull(), sql.lit(True)).otherwise(fails)
    return both.where(passes).drop(ORIGIN, REASON, STACK)


def dead_rows(both: Any) -> Any:
    """Of the rows with a reason what makes a dead letter."""
    return both.where(f"{REASON} IS NOT NULL").select(ORIGIN, REASON, STACK)


def marked(
    frame: Any, decode: str, schema: str | None = None, expect: Mapping[str, str] | None = None
) -> Any:
    """The records of a topic, decoded, each with `_origin`, and `_reason` if it breaks a rule or cannot be.

    - `json`: the fields of the schema, and the record's own columns with `_` before their names;
    - `text`: key and value are strings; `none`: everything is as it was.
    """
    from pyspark.sql import functions as sql

    rows = with_origin(frame)
    rules: list[tuple[Any, Any]] = []
    if decode == "json":
        assert schema is not None
        rows = _json_fields(rows, schema)
        rules = [
            (sql.col("_value").isNull(), sql.lit("there is no value to decode")),
            (
                sql.col(_DATA).isNull() | sql.col(f"{_DATA}.{_CORRUPT}").isNotNull(),
                sql.lit(f"the value is not JSON of {schema}"),
            ),
        ]
        rows = rows.select("*", f"{_DATA}.*").drop(_CORRUPT)
    elif decode == "text":
        for name in ("key", "value"):
            rows = rows.withColumn(name, sql.col(name).cast("string"))
    for name, condition in (expect or {}).items():
        passes = sql.coalesce(sql.expr(condition), sql.lit(False))
        rules.append((~passes, sql.lit(f"{name}: {condition} does not hold")))
    reason = sql.lit(None).cast("string")
    for condition, words in reversed(rules):
        reason = sql.when(condition, words).otherwise(reason)
    rows = rows.withColumns({REASON: reason, STACK: sql.lit(None).cast("string")})
    return rows.drop(_DATA, "_value") if decode == "json" else rows


def _json_fields(frame: Any, schema: str) -> Any:
    from pyspark.sql import functions as sql

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    data = sql.from_json(sql.col("value").cast("string"), f"{schema}, {_CORRUPT} STRING", options)
    own = [sql.col(name).alias(f"_{name}") for name in frame.columns if name != ORIGIN]
    return frame.select(data.alias(_DATA), sql.col(ORIGIN), *own)


def as_dead_letters(dead: Any, run: RunSettings, step: str) -> Any:
    """Records for the dead-letter topic, of a frame with `_origin`, `_reason` and `_stack`."""
    from pyspark.sql import functions as sql

    origin = sql.col(ORIGIN)

    def header(name: str, text: Any) -> Any:
        return sql.struct(sql.lit(name).alias("key"), text.cast("string").cast("binary").alias("value"))

    def kept(entry: Any) -> Any:
        return ~entry["key"].startswith(names.PREFIX) | (entry["key"] == names.ATTEMPTS)

    before = sql.filter(sql.coalesce(origin["headers"], sql.array().cast(_HEADERS_TYPE)), kept)
    told = sql.array(
        header(names.PIPELINE, sql.lit(run.name)),
        header(names.STEP, sql.lit(step)),
        header(names.REASON, sql.substring(sql.col(REASON), 1, names.REASON_CHARACTERS_MAX)),
        header(names.TOPIC, origin["topic"]),
        header(names.PARTITION, origin["partition"]),
        header(names.OFFSET, origin["offset"]),
        header(names.TIMESTAMP, sql.unix_millis(origin["timestamp"])),
        header(names.STACK, sql.substring(sql.col(STACK), 1, names.STACK_CHARACTERS_MAX)),
    )
    told = sql.filter(told, lambda entry: entry["value"].isNotNull())
    return dead.select(
        origin["key"].alias("key"),
        origin["value"].alias("value"),
        sql.concat(before, told).cast(_HEADERS_TYPE).alias("headers"),
    )


def start_dead_letters(dead: Any, run: RunSettings, query: str, step: str = "decode") -> Work | None:
    """Start a query that writes a streaming frame of dead letters; None without a dead-letter topic."""
    from pyspark.sql import functions as sql

    if run.dead_letters is None:
        return None
    letters = as_dead_letters(dead, run, step).observe(DEAD_LETTERS, sql.count(sql.lit(1)).alias("count"))
    return start_to_topic(letters, run, query, run.dead_letters)


def write_dead_letters(letters: Any, run: RunSettings, batch_frame: Any, batch_id: int) -> None:
    """Inside foreachBatch: write the batch's dead letters, once however often the batch is tried."""
    assert run.dead_letters is not None
    application = batch_application(batch_frame, run, "dead-letters")
    write_to_topic(letters, run, application, batch_id, run.dead_letters)

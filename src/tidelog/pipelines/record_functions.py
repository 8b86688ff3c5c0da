"""Python functions of one record, run in bulk: rows in, rows out, and why others failed.

The function gets a row as a dict and returns a dict (the next row), a list of them, or None (no row). What it
raises, and rows that do not fit the schema, fail that record alone.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

RecordFunction = Callable[[dict[str, Any]], Mapping[str, Any] | list[Mapping[str, Any]] | None]


class BadResult(ValueError):
    """A function returned something that is not a row of its schema."""


def run_function(
    function: RecordFunction,
    rows: list[dict[str, Any]],
    origins: list[Any],
    schema: pa.Schema,
    *,
    origin: str,
    reason: str,
    stack: str,
) -> pa.RecordBatch:
    """Call the function on each row; `schema` is that of the result, with the three columns at its end."""
    fields = pa.schema([field for field in schema if field.name not in (origin, reason, stack)])
    out: list[dict[str, Any]] = []
    for row, one in zip(rows, origins, strict=True):
        try:
            results = _results(function(row))
            _check(results, fields)
        except Exception as fault:
            # The function is the user's, and may raise anything: that record fails, the others go on.
            words = f"{type(fault).__name__}: {fault}"
            out.append({origin: one, reason: words, stack: traceback.format_exc()})
        else:
            out += [{**result, origin: one} for result in results]
    return pa.RecordBatch.from_pylist(out, schema=schema)


def _results(returned: Any) -> list[dict[str, Any]]:
    if returned is None:
        return []
    results = returned if isinstance(returned, list) else [returned]
    for result in results:
        if not isinstance(result, Mapping):
            raise BadResult(f"the function returned {type(result).__name__}; a row is a dict")
    return [dict(result) for result in results]


def _check(results: list[dict[str, Any]], fields: pa.Schema) -> None:
    for result in results:
        for field in fields:
            if result.get(field.name) is not None:
                try:
                    pa.scalar(result[field.name], field.type)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as fault:
                    raise BadResult(f"{field.name}: {fault}") from None
        unknown = set(result) - set(fields.names)
        if unknown:
            raise BadResult(f"the schema has no {', '.join(sorted(unknown))}")


def over_batches(
    function: RecordFunction, schema: pa.Schema, *, origin: str, reason: str, stack: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function as `mapInArrow` wants it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            origins = [row.pop(origin) for row in rows]
            yield run_function(function, rows, origins, schema, origin=origin, reason=reason, stack=stack)

    return run

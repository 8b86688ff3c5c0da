"""Pages about records: browse, one record with its batch, live tail, export; `pages_write` writes them."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tidelog.admin.offsets import known_offsets
from tidelog.admin.snapshot import TopicView
from tidelog.client.cluster import LATEST
from tidelog.console.batch_view import batch_with
from tidelog.console.console import Console
from tidelog.console.dead_letters import dead_letter
from tidelog.console.decoding import FORMATS, decode
from tidelog.console.faults import ConsoleFault
from tidelog.console.pages_cluster import attempted
from tidelog.console.parameters import choice, integer, moment_ms, optional_integer
from tidelog.console.record_filter import Predicate, compile_filter
from tidelog.console.record_import import CSV_NULL, FORMULA_STARTS
from tidelog.console.record_reader import (
    EXPORT_RECORDS_MAX,
    EXPORT_SECONDS_MAX,
    PAGE_RECORDS_MAX,
    From,
    Look,
    Seen,
)
from tidelog.console.record_view import RecordView, record_json, record_row
from tidelog.console.rendering import path_part
from tidelog.console.schema_registry import SchemaRegistry
from tidelog.console.wire_client import batch_at

LIMITS = (50, 100, 250, 500)
STARTS = tuple(start.value for start in From)
EXPORT_FORMATS = ("jsonl", "csv")
TAIL_QUEUE_MAX = 64
KEEP_ALIVE_SECONDS = 15.0


def compiled(expression: str, schemas: SchemaRegistry | None) -> Predicate | None:
    """The filter of a query; ConsoleFault with what is wrong in it."""
    try:
        return compile_filter(expression, schemas)
    except ValueError as fault:
        raise ConsoleFault(str(fault), 'For example: value.amount > 100 and key contains "eu-"') from fault


def look_of(console: Console, view: TopicView, fields: Mapping[str, str], limit: int, **more: Any) -> Look:
    """The look into a topic that a query describes."""
    start = From(choice(fields, "from", STARTS))
    number = 0
    if start is From.OFFSET:
        number = integer(fields, "offset", 0)
    elif start is From.TIME:
        number = moment_ms(fields.get("time", ""))
    partition = optional_integer(fields, "partition")
    numbers = tuple(item.number for item in view.partitions)
    if partition is not None:
        if partition not in numbers:
            raise ConsoleFault(f"{view.name} has no partition {partition}")
        numbers = (partition,)
    key = fields.get("key", "")
    return Look(
        view.name,
        numbers,
        start,
        number,
        limit,
        compiled(fields.get("filter", ""), console.schemas),
        key.encode() if key else None,
        committed_only=fields.get("uncommitted", "") != "1",
        **more,
    )


def _formats(fields: Mapping[str, str]) -> tuple[str, str]:
    return choice(fields, "key_format", FORMATS), choice(fields, "value_format", FORMATS)


def records(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    fields = dict(request.query_params)
    limit = integer(fields, "limit", LIMITS[0], 1, PAGE_RECORDS_MAX)
    fault = ""
    seen = Seen((), 0, True, {})
    try:
        seen = console.reader.look(look_of(console, view, fields, limit))
    except ConsoleFault as failure:
        fault = f"{failure.message}. {failure.hint}"
    key_format, value_format = _formats(fields)
    names = ("from", "offset", "time", "partition", "key", "filter", "uncommitted")
    return console.page(
        request,
        "records.html",
        "topics",
        view.name,
        tab="records",
        topic=view,
        rows=[record_row(record, key_format, value_format, console.schemas) for record in seen.records],
        seen=seen,
        fault=fault,
        fields={name: fields.get(name, "") for name in names},
        limit=limit,
        limits=LIMITS,
        starts=STARTS,
        formats=FORMATS,
        key_format=key_format,
        value_format=value_format,
        query="&".join(f"{name}={path_part(value)}" for name, value in fields.items() if name != "notice"),
        **_neighbours(seen, limit),
    )


def _neighbours(seen: Seen, limit: int) -> dict[str, Any]:
    """The offsets at which the pages before and after begin, when one partition is looked at."""
    if len(seen.ends) != 1 or not seen.records:
        return {"older": None, "newer": None}
    ((first, end),) = seen.ends.values()
    offsets = [record.offset for record in seen.records]
    older = max(first, min(offsets) - limit) if min(offsets) > first else None
    newer = max(offsets) + 1 if max(offsets) + 1 < end else None
    return {"older": older, "newer": newer}


def record(console: Console, request: Request) -> Response:
    name = request.path_params["topic"]
    view = console.topic(name)
    partition = integer(request.path_params, "partition")
    offset = integer(request.path_params, "offset")
    found, following = console.reader.one_and_next(name, partition, offset)
    fields = dict(request.query_params)
    key_format, value_format = _formats(fields)
    letter = dead_letter(found)
    data, batch_fault = attempted(lambda: batch_at(console.wire, name, partition, found.offset), b"")
    return console.page(
        request,
        "record.html",
        "topics",
        f"{name}-{partition} @ {found.offset}",
        tab="records",
        topic=view,
        record=found,
        asked=offset,
        following=following,
        key=decode(found.key, key_format, pretty=True, schemas=console.schemas),
        value=decode(found.value, value_format, pretty=True, schemas=console.schemas),
        headers=[(header, decode(value)) for header, value in found.headers],
        formats=FORMATS,
        key_format=key_format,
        value_format=value_format,
        batch=batch_with(data, found.offset),
        batch_fault=batch_fault,
        letter=letter,
        topics=sorted(name for name, one in console.snapshot().topics.items() if not one.internal),
    )


# Live tail


async def tail(console: Console, request: Request) -> Response:
    """Records as server-sent events, from the newest on."""
    fields = dict(request.query_params)
    view = await run_in_threadpool(console.topic, request.path_params["topic"])
    # What a look from the newest on would show comes first, so that the page is not empty.
    look = look_of(console, view, {**fields, "from": "newest"}, LIMITS[0])
    partitions = [(view.name, number) for number in look.partitions]
    ends = await run_in_threadpool(known_offsets, console.wire, partitions, LATEST)
    starts = {number: offset for (_, number), offset in ends.items()}
    queue: asyncio.Queue[tuple[list[dict[str, Any]], int]] = asyncio.Queue(TAIL_QUEUE_MAX)
    loop = asyncio.get_running_loop()

    def offer(item: tuple[list[dict[str, Any]], int]) -> None:
        # A browser that does not keep up misses records, it does not fill our memory.
        if not queue.full():
            queue.put_nowait(item)

    def receive(rows: list[dict[str, Any]], left_out: int) -> None:
        loop.call_soon_threadsafe(offer, (rows, left_out))

    opened = console.tails.open(view.name, starts, look.predicate, _formats(fields), receive)

    async def stream() -> AsyncIterator[str]:
        try:
            yield "event: open\ndata: {}\n\n"
            while console.still_in(request):
                try:
                    rows, left_out = await asyncio.wait_for(queue.get(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                data = json.dumps({"rows": rows, "left_out": left_out}, ensure_ascii=False)
                yield f"event: records\ndata: {data}\n\n"
        finally:
            opened.stop()

    return StreamingResponse(stream(), media_type="text/event-stream")


# Files


def export(console: Console, request: Request) -> Response:
    """The records of a look as a file of JSON lines or CSV."""
    view = console.topic(request.path_params["topic"])
    fields = dict(request.query_params)
    form = choice(fields, "as", EXPORT_FORMATS)
    limit = integer(fields, "export_limit", EXPORT_RECORDS_MAX, 1, EXPORT_RECORDS_MAX)
    if fields.get("from", "newest") == "newest" and "export_limit" not in fields:
        fields["from"] = "beginning"
    look = look_of(
        console, view, fields, limit, seconds_max=EXPORT_SECONDS_MAX, scanned_max=2 * EXPORT_RECORDS_MAX
    )
    found = console.reader.stream(look)
    lines = json_lines(found) if form == "jsonl" else csv_lines(found, console.schemas)
    kind = "application/x-ndjson" if form == "jsonl" else "text/csv; charset=utf-8"
    headers = {"content-disposition": f'attachment; filename="{view.name}.{form}"'}
    return StreamingResponse(lines, media_type=kind, headers=headers)


def json_lines(found: Iterator[RecordView]) -> Iterator[str]:
    for item in found:
        yield json.dumps(record_json(item), ensure_ascii=False) + "\n"


def csv_lines(found: Iterator[RecordView], schemas: SchemaRegistry | None = None) -> Iterator[str]:
    """CSV with a header line; text that a spreadsheet would take for a formula gets a quote before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("partition", "offset", "timestamp_ms", "key", "value", "headers"))
    for item in found:
        headers = json.dumps({name: decode(data).text for name, data in item.headers}, ensure_ascii=False)
        writer.writerow(
            (
                item.partition,
                item.offset,
                item.timestamp_ms,
                csv_cell(item.key, schemas),
                csv_cell(item.value, schemas),
                headers,
            )
        )
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def csv_cell(data: bytes | None, schemas: SchemaRegistry | None) -> str:
    """Bytes as text that `record_import` reads back; null is \\N, so that it differs from empty."""
    if data is None:
        return CSV_NULL
    text = decode(data, schemas=schemas).text
    return f"'{text}" if text[:1] in FORMULA_STARTS else text


def records_json(console: Console, request: Request) -> Response:
    """`/api/topics/NAME/records`: the same questions as the page, records in full."""
    view = console.topic(request.path_params["topic"])
    fields = dict(request.query_params)
    limit = integer(fields, "limit", LIMITS[0], 1, PAGE_RECORDS_MAX)
    seen = console.reader.look(look_of(console, view, fields, limit))
    return JSONResponse(
        {
            "records": [record_json(item) for item in seen.records],
            "scanned": seen.scanned,
            "complete": seen.complete,
        }
    )

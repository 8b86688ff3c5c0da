"""The page of a topic's segments on disk, where the console may read the brokers' data folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog.admin.log_dirs import replica_places
from tidelog.admin.offsets import known_offsets
from tidelog.admin.snapshot import TopicView
from tidelog.client.cluster import LATEST
from tidelog.console.console import Console
from tidelog.console.faults import NOT_FOUND, ConsoleFault
from tidelog.console.parameters import integer, optional_integer
from tidelog.console.segment_files import ENTRIES_SHOWN_MAX, SegmentView


def replica_folder(console: Console, topic: str, partition: int, broker: int) -> Path:
    """Where a broker keeps its replica, as the broker itself says."""
    for folder, sizes in replica_places(console.wire, [broker], {topic: [partition]}):
        if any(size.topic == topic and size.partition == partition for size in sizes):
            return console.segments.folder(folder.path, topic, partition)
    raise ConsoleFault(
        f"broker {broker} holds no replica of {topic}-{partition}", "Choose one of its replicas.", NOT_FOUND
    )


def facts(console: Console, view: TopicView, fields: dict[str, str]) -> dict[str, Any]:
    """What the page and the API tell: the segments of one replica, and the indexes of one segment."""
    number = integer(fields, "partition", 0, 0, len(view.partitions) - 1)
    partition = view.partitions[number]
    default = partition.leader if not partition.offline else partition.replicas[0]
    broker = integer(fields, "broker", default)
    base = optional_integer(fields, "base")
    found: dict[str, Any] = {"partition": partition, "broker": broker, "base": base, "fault": ""}
    segments: list[SegmentView] = []
    found |= {"segments": segments, "indexes": None, "folder": ""}
    if not console.segments:
        return found
    try:
        folder = replica_folder(console, view.name, number, broker)
        ends = known_offsets(console.wire, [(view.name, number)], LATEST) if not partition.offline else {}
        found["folder"] = str(folder)
        found["segments"] = console.segments.segments(folder, ends.get((view.name, number)))
        if base is not None:
            found["indexes"] = console.segments.indexes(folder, base)
    except ConsoleFault as fault:
        found["fault"] = f"{fault.message}. {fault.hint}"
    return found


def segments(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    found = facts(console, view, dict(request.query_params))
    return console.page(
        request,
        "topic_segments.html",
        "topics",
        view.name,
        tab="segments",
        topic=view,
        readable=bool(console.segments),
        largest=max((segment.size_bytes for segment in found["segments"]), default=0),
        entries_max=ENTRIES_SHOWN_MAX,
        **found,
    )


def segments_json(console: Console, request: Request) -> Response:
    """`/api/topics/NAME/segments?partition=&broker=&base=`."""
    view = console.topic(request.path_params["topic"])
    if not console.segments:
        raise ConsoleFault("this console reads no data folder", "Start it with --data.", NOT_FOUND)
    found = facts(console, view, dict(request.query_params))
    if found["fault"]:
        raise ConsoleFault(found["fault"], "", NOT_FOUND)
    return JSONResponse(
        {
            "topic": view.name,
            "partition": found["partition"].number,
            "broker": found["broker"],
            "segments": [asdict(segment) for segment in found["segments"]],
            "indexes": None if found["indexes"] is None else asdict(found["indexes"]),
        }
    )

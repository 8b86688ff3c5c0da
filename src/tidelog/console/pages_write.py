"""Pages that write records: produce, edit, replay, import, and send dead letters back."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from tidelog.admin.snapshot import TopicView
from tidelog.console.console import Console
from tidelog.console.dead_letters import DeadLetter, SentBack, dead_letter, send_back
from tidelog.console.faults import ConsoleFault
from tidelog.console.kafka_changes import ToSend
from tidelog.console.pages_records import look_of
from tidelog.console.parameters import choice, integer, optional_integer
from tidelog.console.record_import import headers_text, parse_file, parse_headers, typed_bytes
from tidelog.console.record_reader import From, Look
from tidelog.console.record_view import RecordView
from tidelog.console.rendering import path_part, plural

VALUE_KINDS = ("text", "json", "hex", "base64", "null")
KEY_KINDS = ("text", "hex", "base64", "null")
REDRIVEN_MAX = 1_000
SHOWN_LETTERS_MAX = 100


def produce_page(console: Console, request: Request) -> Response:
    """The form for a record, filled with another one to edit or send again where one is named."""
    view = console.topic(request.path_params["topic"])
    fields = dict(request.query_params)
    values = {
        "key": "",
        "key_kind": "text",
        "value": "",
        "value_kind": "text",
        "headers": "",
        "partition": "",
    }
    if fields.get("copy_partition"):
        source = console.reader.one(
            view.name, integer(fields, "copy_partition"), integer(fields, "copy_offset")
        )
        values |= form_of(source)
    return console.page(
        request,
        "produce.html",
        "topics",
        view.name,
        tab="produce",
        topic=view,
        values=values,
        kinds=VALUE_KINDS,
        key_kinds=KEY_KINDS,
        copied=bool(fields.get("copy_partition")),
    )


def form_of(source: RecordView) -> dict[str, str]:
    """The fields of the form that write this very record again."""
    key_kind, key = _typed_text(source.key)
    value_kind, value = _typed_text(source.value)
    return {
        "key": key,
        "key_kind": key_kind,
        "value": value,
        "value_kind": value_kind,
        "headers": headers_text(source.headers),
    }


def _typed_text(data: bytes | None) -> tuple[str, str]:
    if data is None:
        return "null", ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "hex", data.hex(" ")
    # A form turns line ends into CR LF, and the way back makes LF of them.
    return ("hex", data.hex(" ")) if "\r" in text or "\0" in text else ("text", text)


def produce(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    name = request.path_params["topic"]
    key_text = form.get("key", "")
    # An empty field of text means no key, as it does for every producer's command line.
    key_kind = choice(form, "key_kind", KEY_KINDS)
    key = None if key_kind == "text" and not key_text else typed_bytes(key_text, key_kind)
    value = typed_bytes(form.get("value", ""), choice(form, "value_kind", VALUE_KINDS))
    partition = optional_integer(form, "partition")
    written, offset = console.changes.produce(
        name, partition, key, value, parse_headers(form.get("headers", ""))
    )
    where = f"/topics/{path_part(name)}/records"
    return console.done(where, f"Written to partition {written} at offset {offset}.")


def import_records(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    """Write the records of JSON lines or CSV, as `export` made them."""
    name = request.path_params["topic"]
    # A browser sends line ends as CR LF; inside quoted cells of CSV they would stay.
    parsed = parse_file(form.get("lines", "").replace("\r\n", "\n"))
    keep = form.get("keep_partitions") == "1"
    console.changes.produce_all(
        [ToSend(name, item.partition if keep else None, *item[:3]) for item in parsed]
    )
    return console.done(f"/topics/{path_part(name)}/records", f"{plural(len(parsed), 'record')} written.")


def replay(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    """Send a record again as it is, byte by byte, to the same topic or another one."""
    name = request.path_params["topic"]
    source = console.reader.one(name, integer(form, "partition"), integer(form, "offset"))
    target = form.get("target", "").strip() or name
    console.topic(target)
    written, offset = console.changes.produce(target, None, source.key, source.value, source.headers)
    where = f"/topics/{path_part(target)}/records/{written}/{offset}"
    return console.done(where, f"Sent again to {target}, partition {written}, offset {offset}.")


# Dead letters


def _letters(console: Console, view: TopicView, fields: Mapping[str, str]) -> list[DeadLetter]:
    """The dead letters that a query picks and that were not sent back, the oldest first, bounded."""
    look = look_of(console, view, {"from": "beginning", **fields}, REDRIVEN_MAX)
    sent_back = SentBack(console.client, console.wire, view.name)

    def waits(record: RecordView) -> bool:
        return record not in sent_back and (look.predicate is None or look.predicate(record))

    records = console.reader.look(replace(look, predicate=waits)).records
    found = (dead_letter(record) for record in records)
    return [letter for letter in found if letter is not None]


def absent_targets(console: Console, letters: list[DeadLetter]) -> list[str]:
    """Topics that dead letters name and that are not there; one newer than the last look is asked for."""
    known = console.snapshot().topics
    absent: list[str] = []
    for target in sorted({letter.target for letter in letters} - set(known)):
        try:
            console.topic(target)
        except ConsoleFault:
            absent.append(target)
    return absent


def redrive_page(console: Console, request: Request) -> Response:
    """The dead letters of a topic, why they failed, and where they would go."""
    view = console.topic(request.path_params["topic"])
    fields = dict(request.query_params)
    fault = ""
    letters: list[DeadLetter] = []
    try:
        letters = _letters(console, view, {name: fields.get(name, "") for name in ("filter", "partition")})
    except ConsoleFault as failure:
        fault = f"{failure.message}. {failure.hint}"
    whole = [letter for letter in letters if not letter.is_bare]
    return console.page(
        request,
        "redrive.html",
        "topics",
        view.name,
        tab="redrive",
        topic=view,
        letters=letters[:SHOWN_LETTERS_MAX],
        total=len(whole),
        bare=len(letters) - len(whole),
        limited=len(letters) >= REDRIVEN_MAX,
        targets=sorted(Counter(letter.target for letter in whole).items()),
        absent=absent_targets(console, whole),
        reasons=Counter(letter.reason or "no reason given" for letter in letters).most_common(10),
        picked=" ".join(f"{letter.record.partition}:{letter.record.offset}" for letter in whole),
        filter=fields.get("filter", ""),
        fault=fault,
    )


def redrive(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    """Send back exactly the dead letters that the page showed; they stay in their topic, as logs do."""
    view = console.topic(request.path_params["topic"])
    places = picked_places(form.get("picked", ""))
    letters = picked_letters(console, view, places)
    absent = absent_targets(console, letters)
    if absent:
        raise ConsoleFault(f"there is no topic {absent[0]!r} to send a dead letter back to")
    sent = send_back(console.client, console.wire, view.name, places)
    targets = ", ".join(sorted({letter.target for letter in letters}))
    told = f"{plural(sent, 'dead letter')} sent back to {targets}."
    if sent < len(letters):
        told += f" {len(letters) - sent} had been sent back before."
    return console.done(f"/topics/{path_part(view.name)}/redrive", told)


def picked_places(picked: str) -> dict[int, set[int]]:
    """Offsets by partition, from places written as `partition:offset`."""
    wanted: dict[int, set[int]] = {}
    for word in picked.split():
        first, _, second = word.partition(":")
        place = {"partition": first, "offset": second}
        wanted.setdefault(integer(place, "partition"), set()).add(integer(place, "offset"))
    count = sum(len(offsets) for offsets in wanted.values())
    if not 0 < count <= REDRIVEN_MAX:
        raise ConsoleFault(f"{count} dead letters were picked", f"One to {REDRIVEN_MAX} go at a time.")
    return wanted


def picked_letters(console: Console, view: TopicView, places: Mapping[int, set[int]]) -> list[DeadLetter]:
    """The dead letters at these places, read again; all must still be there."""
    count = sum(len(offsets) for offsets in places.values())
    letters: list[DeadLetter] = []
    for partition, offsets in sorted(places.items()):
        span = max(offsets) - min(offsets) + 1
        look = Look(view.name, (partition,), From.OFFSET, min(offsets), span)
        for record in console.reader.look(look).records:
            letter = dead_letter(record) if record.offset in offsets else None
            if letter is not None:
                letters.append(letter)
    if len(letters) < count:
        raise ConsoleFault(f"{count - len(letters)} of the dead letters are gone", "Look at them again.")
    return letters

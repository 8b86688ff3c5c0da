"""The part of docs/compatibility.md that is made from tables: answers that differ, and the versions of APIs.

    python -m tests.oracle --compatibility        writes it anew

What stands between the two marks of the page is what `generated` returns; a test holds them together.
"""

from pathlib import Path

from kio.schema.index import api_key_map

from tests.oracle import recording
from tests.oracle.differences import MEANT
from tidelog.protocol.apis import APIS, Api

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN = "<!-- made by tests/oracle from here -->"
END = "<!-- to here -->"
#: why an API of Kafka is not here, by a part of its name
NOT_HERE = {
    "Streams": "no streams groups",
    "Raft": "no quorum",
    "UpdateFeatures": "no features of a quorum",
}


def generated() -> str:
    """The tables, between their marks."""
    head = recording.head(recording.ONE_BROKER)
    lines = [BEGIN, "## Answers", ""]
    lines += [
        "`tests/oracle` compares every answer of the same sessions on both systems. These differ on purpose.",
        "",
        "| what | Kafka | here | why |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.what} | {row.kafka} | {row.here} | {row.why} |" for row in MEANT]
    lines += [
        "",
        "## APIs and versions",
        "",
        f"What Apache Kafka {head['kafka']} answers to ApiVersions, and what Tidelog does. Sessions exercise"
        " every version that both serve.",
        "",
        "| API | Kafka | Tidelog | note |",
        "|---|---|---|---|",
        *_api_rows(),
        END,
    ]
    return "\n".join(lines)


def kafka_versions() -> dict[int, tuple[int, int]]:
    """What Kafka advertised, by API key: from the first ApiVersions answer that was recorded."""
    for recorded in recording.read(recording.ONE_BROKER):
        asked = {step.label for step in recorded.session.steps if step.api == "ApiVersions"}
        for label, answer in recorded.transcript:
            if label in asked and answer.get("api_keys"):
                return {
                    row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]
                }
    raise LookupError("no answer of ApiVersions was recorded: record anew")


def _api_rows() -> list[str]:
    kafka = kafka_versions()
    rows = []
    for key in kafka.keys() | APIS.keys():
        api = APIS.get(key)
        name = "".join(map(str.capitalize, api_key_map[key].split("_"))) if api is None else api.name
        spans = (_span(*kafka[key]) if key in kafka else "", _span(*_advertised(api)))
        rows.append((name, *spans, _note(name, api, kafka.get(key))))
    return [f"| {' | '.join(row)} |" for row in sorted(rows)]


def _advertised(api: Api | None) -> tuple[int, int]:
    return (0, -1) if api is None else (api.min_version, api.max_version)


def _note(name: str, api: Api | None, kafka: tuple[int, int] | None) -> str:
    if api is None:
        return next(why for word, why in NOT_HERE.items() if word in name)
    notes = []
    if api.served_from > api.min_version:
        notes.append(f"below {api.served_from} is refused by both")
    if kafka is None:
        notes.append("here alone")
    elif api.max_version > kafka[1]:
        notes.append(f"{_span(kafka[1] + 1, api.max_version)} here alone")
    elif (api.min_version, api.max_version) != kafka:
        raise LookupError(f"say here why {name} has fewer versions than in Kafka")
    return "; ".join(notes)


def _span(first: int, last: int) -> str:
    if first > last:
        return ""
    return str(first) if first == last else f"{first}–{last}"


def written(page: str) -> str:
    """The page with its part made anew; at its end if there is none."""
    if BEGIN not in page:
        return page.rstrip("\n") + "\n\n" + generated() + "\n"
    before, rest = page.split(BEGIN, 1)
    return before + generated() + rest.split(END, 1)[1]

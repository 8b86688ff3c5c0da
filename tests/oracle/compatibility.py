"""The part of docs/compatibility.md that is made from tables: answers that differ, and the versions of APIs.

    python -m oracle --compatibility        writes it anew

What stands between the two marks of the page is what `generated` returns; a test holds them together.
"""

from pathlib import Path

from oracle import recording
from oracle.differences import MEANT
from tidelog.protocol.apis import APIS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN = "<!-- made by tests/oracle from here -->"
END = "<!-- to here -->"


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
        f"Apache Kafka {head['kafka']}; sessions exercise every version that both have.",
        "",
    ]
    lines += ["| API | both | here alone |", "|---|---|---|"]
    for api in sorted(APIS.values(), key=lambda row: row.name):
        first, last = head["versions"].get(api.name, (None, None))
        lowest = max(api.min_version, api.served_from)
        if first is None:
            both, alone = "none", _span(lowest, api.max_version)
        else:
            both = _span(first, last)
            alone = ", ".join(filter(None, (_span(lowest, first - 1), _span(last + 1, api.max_version))))
        lines.append(f"| {api.name} | {both} | {alone} |")
    lines.append(END)
    return "\n".join(lines)


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

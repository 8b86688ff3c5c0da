"""Pages from templates: the environment, and the filters that turn figures into words.

Everything that a template prints is escaped unless it is Markup, and only `charts` makes Markup.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from tidelog import __version__
from tidelog.console import charts

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def grouped(value: float | None) -> str:
    """1234567 as 1 234 567, with narrow spaces; a dash for what is not known."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def byte_size(value: int | None) -> str:
    """Bytes in the unit that fits."""
    if value is None or value < 0:
        return "–"
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def moment(timestamp_ms: float | None) -> str:
    """A time in ms as the date and time of this machine."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "–"
    try:
        whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000))
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return f"{whole}.{int(timestamp_ms) % 1000:03d}"


def clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def ago(seconds: float) -> str:
    """How long ago a time was."""
    passed = max(0, time.time() - seconds)
    for limit, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed >= limit:
            return f"{passed / limit:.0f} {unit} ago"
    return "now" if passed < 2 else f"{passed:.0f} s ago"


def rate(value: float | None) -> str:
    return "–" if value is None else f"{charts.short_number(value)}/s"


def plural(count: int, noun: str) -> str:
    if count == 1:
        return f"{grouped(count)} {noun}"
    return f"{grouped(count)} {noun[:-1]}ies" if noun.endswith("y") else f"{grouped(count)} {noun}s"


def path_part(text: object) -> str:
    """Text as one part of a path or a value of a query, safe in both."""
    return quote(str(text), safe="")


def environment(more_folders: Sequence[Path] = ()) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([TEMPLATES, *more_folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "grouped": grouped,
        "byte_size": byte_size,
        "moment": moment,
        "clock": clock,
        "ago": ago,
        "rate": rate,
        "short": charts.short_number,
        "part": path_part,
    }
    made.filters.update(filters)
    made.globals.update(
        {
            "version": __version__,
            "plural": plural,
            "line_chart": charts.line_chart,
            "spark": charts.spark_line,
        }
    )
    return made

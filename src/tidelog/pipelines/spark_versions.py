"""Which Spark this is, and what its Python Data Source API has; stand-ins for what it lacks.

| | 4.0 | 4.1 | 4.2, 4.3 |
|---|---|---|---|
| a stream is written as Arrow, not row by row | no | yes | yes |
| a stream's source is told where a batch begins and how large it may be (admission control) | no | no | yes |
| a progress has the ends of partitions | no | no | yes |

Everything else is alike. `make spark-versions` runs the same tests on each.
"""

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterable
from typing import Any

from tidelog.pipelines.java import CannotRun

#: minor versions that `make spark-versions` tests
SUPPORTED = ((4, 0), (4, 1), (4, 2), (4, 3))
_LIMIT_OPTIONS = ("maxoffsetspertrigger", "minoffsetspertrigger", "batch_records")
WITHOUT_LIMITS = (
    "Spark before 4.2 has no admission control for sources in Python: {options} cannot be heeded, and a "
    "micro-batch takes all that is there when it begins"
)


def supported_words() -> str:
    """The versions, as a person says them."""
    names = [f"{major}.{minor}" for major, minor in SUPPORTED]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def check_spark(version: str | None = None) -> None:
    """Raises CannotRun for a Spark that this was not tested with; `version` is the installed one's."""
    if version is None:
        version = importlib.import_module("pyspark").__version__
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers not in SUPPORTED:
        low, high = SUPPORTED[0], SUPPORTED[-1]
        raise CannotRun(
            f"Spark {version} is not supported; pipelines run on Spark {supported_words()}: "
            f"pip install 'pyspark>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}'"
        )


def installed_spark() -> str | None:
    """The version that is installed here, without importing it."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def limits_note(options: Iterable[str], version: str | None) -> tuple[str, ...]:
    """What a person should know of limits of a batch that this Spark cannot keep."""
    limits = [name for name in options if name.lower() in _LIMIT_OPTIONS]
    if not limits or version is None or not version.startswith(("4.0.", "4.1.")):
        return ()
    return (WITHOUT_LIMITS.format(options=" and ".join(limits)),)


def _class_of(module: str, name: str, stand_in: type) -> Any:
    try:
        return getattr(importlib.import_module(module), name, stand_in)
    except ModuleNotFoundError:
        return stand_in


class _Absent:
    """Stands for a class that this Spark does not have: nothing is one of these."""


def arrow_schema(schema: Any) -> Any:
    """The Arrow schema of a Spark one, times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    named = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if named else to_arrow_schema(schema)


_SOURCES = "pyspark.sql.datasource"
_LIMITS = "pyspark.sql.streaming.datasource"

SupportsTriggerAvailableNow: Any = _class_of(_LIMITS, "SupportsTriggerAvailableNow", _Absent)
ReadAllAvailable: Any = _class_of(_LIMITS, "ReadAllAvailable", _Absent)
ReadMaxRows: Any = _class_of(_LIMITS, "ReadMaxRows", _Absent)
ReadMinRows: Any = _class_of(_LIMITS, "ReadMinRows", _Absent)
HAS_ADMISSION_CONTROL = ReadMaxRows is not _Absent

DataSourceStreamWriter: Any = _class_of(_SOURCES, "DataSourceStreamWriter", _Absent)
#: where there is none, streams are written row by row
DataSourceStreamArrowWriter: Any = _class_of(_SOURCES, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
HAS_ARROW_STREAM_WRITER = DataSourceStreamArrowWriter is not DataSourceStreamWriter

"""Which Spark is installed and which are supported, without importing it: a plan is made without PySpark.

| | 4.0 | 4.1 | 4.2, 4.3 |
|---|---|---|---|
| a stream is written as Arrow, not row by row | no | yes | yes |
| a stream's source is told where a batch begins and how large it may be (admission control) | no | no | yes |
| a progress has the ends of partitions | no | no | yes |

Everything else is alike; `spark_api` stands in for what is missing. `make spark-versions` runs the
same tests on each.
"""

import importlib
import importlib.metadata
from collections.abc import Iterable

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

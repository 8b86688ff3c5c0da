"""Queries that are run to their end, also on a machine where everything is late."""

from typing import Any

from pyspark.errors import PySparkException

STARTS_MAX = 6
#: Spark gives a Python worker ten seconds, hard-coded, which a busy machine does not keep
TOO_LATE = "Python worker failed to connect back"


def run_to_its_end(writer: Any, seconds_max: float) -> Any:
    """The query of a writer that ends by itself, when it has ended; begun again where a worker was too late.

    A start goes on where the one before it was, so nothing that a test counts may be there twice.
    """
    for left in reversed(range(STARTS_MAX)):
        try:
            query = writer.start()
            assert query.awaitTermination(seconds_max)
        except PySparkException as fault:
            if left == 0 or TOO_LATE not in str(fault):
                raise
        else:
            return query
    raise AssertionError("the last try returns or raises")

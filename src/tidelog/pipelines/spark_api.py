"""What the Python Data Source API of the installed Spark has, and stand-ins for what it lacks.

To import this is to import PySpark. Which version has what is in `spark_versions`, which needs none.
"""

import importlib
import inspect
from typing import Any


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

"""Makes `format("tidelog")` work: Spark imports modules called `pyspark_*` and registers a DefaultSource."""

from tidelog.pipelines.data_source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]

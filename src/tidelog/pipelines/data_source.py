"""The data source `tidelog` as Spark sees it: its name, its schema, who reads and who writes.

`pyspark_tidelog` offers it as `DefaultSource`, so Spark finds it without any call. Options are checked here,
in the driver, before anything runs. Spark asks in a Python process of its own each time, once or more for
each micro-batch, so only what is asked for is imported.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidelog.client.faults import BadOption
from tidelog.pipelines.spark_versions import check_spark

check_spark()


class TidelogDataSource(DataSource):
    """Topics of a Kafka-protocol cluster as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "tidelog"

    def schema(self) -> StructType:
        """The columns of the source; two of them only when asked for."""
        from tidelog.pipelines.source import source_schema

        flags = {name.lower(): str(value).strip().lower() == "true" for name, value in self.options.items()}
        return source_schema(flags.get("includeheaders", False), flags.get("includeleaderepoch", False))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`."""
        from tidelog.pipelines.source import TidelogReader
        from tidelog.pipelines.source_options import SourceOptions

        return TidelogReader(SourceOptions.read(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of `spark.readStream`."""
        from tidelog.pipelines.source import stream_reader
        from tidelog.pipelines.source_options import SourceOptions

        return stream_reader(SourceOptions.read(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of `df.write`; raises BadOption for what would have to remove records first."""
        from tidelog.pipelines.sink import batch_writer
        from tidelog.pipelines.sink_options import SinkOptions

        if overwrite:
            raise BadOption('a topic is not overwritten: write .mode("append"), which adds to it')
        return batch_writer(SinkOptions.read(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer of `df.writeStream`."""
        from tidelog.pipelines.sink import stream_writer
        from tidelog.pipelines.sink_options import SinkOptions

        return stream_writer(SinkOptions.read(self.options), schema)

"""The data source `tidelog` as Spark sees it: its name, its schema, who reads and who writes.

`pyspark_tidelog` offers it as `DefaultSource`, so Spark finds it without any call. Options are checked here,
in the driver, before anything runs. Spark asks in a Python process of its own each time, once or more for
each micro-batch, so only what is asked for is imported.
"""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from tidelog.pipelines.decoded_values import Decoding
    from tidelog.pipelines.source_options import SourceOptions

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
        decoding = None
        if "decode" in flags:
            from tidelog.pipelines.decoded_values import chosen_schema
            from tidelog.pipelines.source_options import SourceOptions

            # What only a batch or only a stream may have is checked by their readers.
            asked = SourceOptions.decoding(self.options)
            decoding = None if asked is None else chosen_schema(asked)
        return source_schema(
            flags.get("includeheaders", False), flags.get("includeleaderepoch", False), decoding
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`."""
        from tidelog.pipelines.source import TidelogReader
        from tidelog.pipelines.source_options import SourceOptions

        options = SourceOptions.read(self.options, streaming=False)
        return TidelogReader(options, _decoding(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of `spark.readStream`."""
        from tidelog.pipelines.source import stream_reader
        from tidelog.pipelines.source_options import SourceOptions

        options = SourceOptions.read(self.options, streaming=True)
        if options.share_group is not None:
            from tidelog.pipelines.queue_source import queue_reader

            return queue_reader(options, _decoding(options, schema))
        return stream_reader(options, _decoding(options, schema))

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


def _decoding(options: "SourceOptions", schema: StructType) -> "Decoding | None":
    """How values are decoded: with the schema that the columns were made of, whatever is the latest now."""
    if options.decode is None:
        return None
    from tidelog.pipelines.decoded_types import schema_id_of
    from tidelog.pipelines.decoded_values import chosen_schema

    return chosen_schema(options.decode, schema_id_of(schema))

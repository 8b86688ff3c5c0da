"""Data pipelines on Apache Spark: topics as source and sink, and ready pipelines, as ordinary clients."""

"""The log on disk: segments, indexes, recovery, retention, compaction. Knows nothing of the wire."""

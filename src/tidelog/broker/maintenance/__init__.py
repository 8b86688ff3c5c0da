"""What a broker does with its logs without being asked: flushes, retention, compaction, checkpoints."""

"""The log on disk: segments, indexes, recovery, retention, compaction."""

"""Log compaction: the last record of each key stays. `plan` says what to clean, `rewrite` writes new segments, `swap`
replaces the old ones. Rewriting runs in another process that gets only the plan."""

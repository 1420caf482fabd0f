"""Log compaction: of every key the last record stays. `plan` says what to clean, `rewrite` writes new segments,
`swap` puts them in the place of the old ones. What rewrites runs in another process and knows only the plan."""

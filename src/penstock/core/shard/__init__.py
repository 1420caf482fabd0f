"""The common part of all coordinator shards: records, outcomes, deadlines."""

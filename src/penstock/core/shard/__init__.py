"""What all coordinator shards share: records, outcomes, deadlines."""

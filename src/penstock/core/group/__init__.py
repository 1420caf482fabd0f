"""Consumer groups and committed offsets as a sans-IO shard: requests in, records and replies out."""

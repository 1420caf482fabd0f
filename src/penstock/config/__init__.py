"""Settings of brokers, topics and groups: names, types, limits, defaults, and where a value comes from."""

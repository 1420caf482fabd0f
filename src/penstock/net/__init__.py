"""Transport: listener, channel, connection. Knows frames, not requests."""

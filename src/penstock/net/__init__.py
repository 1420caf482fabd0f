"""Transport: listener, channel, connection. It knows frames, not requests."""

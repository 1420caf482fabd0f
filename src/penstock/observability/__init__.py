"""What a person or a dashboard sees of a running broker: metrics and log lines. Nothing depends on it to work."""

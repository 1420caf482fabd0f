"""Metrics and log lines of a running broker. No other layer depends on them."""

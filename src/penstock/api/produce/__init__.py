"""Produced batches on their way to the log."""

"""Checkers of a history: what clients were promised, and what brokers must never do."""

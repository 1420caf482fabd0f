"""Faults of a history, and the code that causes them."""

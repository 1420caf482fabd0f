"""Observers of a history, and the demands at its end."""

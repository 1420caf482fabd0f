"""Producers without transactions, each with its own history."""

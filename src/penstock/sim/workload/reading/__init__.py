"""Readers: of everything, and of committed records."""

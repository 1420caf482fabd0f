"""Segments of a log: their files, lookups in them, ranges of them."""

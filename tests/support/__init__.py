"""Shared by several kinds of tests; shows nothing itself."""

"""Partitions this broker hosts: the produce and fetch paths and their waiters."""

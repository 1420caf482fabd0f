"""Partitions this broker hosts: the produce and fetch paths and those who wait on them."""

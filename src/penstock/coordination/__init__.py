"""Coordinators: they host sans-IO shards on the partitions of internal topics."""

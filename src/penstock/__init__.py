"""Penstock: an event streaming platform that every Kafka client already speaks to."""

__version__ = "0.1.0"

"""Cluster metadata as an image built by replaying records."""

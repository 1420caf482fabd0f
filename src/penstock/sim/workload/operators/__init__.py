"""Operators: topics, replicas, settings, voters."""

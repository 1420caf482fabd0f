"""Starts brokers: one, or several on this machine."""

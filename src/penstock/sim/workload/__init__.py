"""Clients of a simulated cluster: simple, impatient, and recording everything they do and see."""

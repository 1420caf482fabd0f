"""Protocols between the product and the world: disk, channel, clock, entropy, flusher, workers.

Definitions only. Real implementations are in `runtime` and `net`, their simulated twins in `sim`.
"""

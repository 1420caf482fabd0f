"""Protocols between the product and the world: disk, channel, clock, entropy, flusher.

Nothing here does anything. Real implementations live in `runtime` and `net`,
their evil twins in `sim`.
"""

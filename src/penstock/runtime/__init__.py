"""The real world: disk, clock, entropy, threads, event loop. Only `node` imports it."""

"""The real environment: disk, clock, entropy, threads, event loop. Only `node` imports it."""

"""Simulated machines: disks, clocks, threads, processes, and the network between them."""

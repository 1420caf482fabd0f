"""The simulation: whole clusters on a seed, under faults, judged."""

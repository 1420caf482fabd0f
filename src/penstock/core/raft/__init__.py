"""Raft as a sans-IO core: facts in, intentions out. The way in is `core.RaftCore`."""

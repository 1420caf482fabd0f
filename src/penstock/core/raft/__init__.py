"""Raft as a sans-IO core: facts in, intentions out. `core.RaftCore` is the entry point."""

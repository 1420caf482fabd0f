"""Servers that run nothing but Raft."""

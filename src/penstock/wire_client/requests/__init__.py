"""Requests as values: building requests, reading answers, and the error codes that are worth a retry.

Must not know: sockets, event loops, clocks. An import contract enforces this.
"""

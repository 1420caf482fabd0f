"""Requests as values: how one is built, what its answer says, which error code is worth another try.

Must not know: sockets, event loops, clocks. An import contract holds it to that.
"""

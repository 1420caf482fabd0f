"""Requests: dispatch, and one handler file per API. Knows messages, not sockets."""

"""Kafka's protocol as bytes: message classes, codecs, headers, the API table.

Knows layouts and versions, never meaning. Handlers see one shape per message; which
version put what on the wire ends here.
"""

"""Kafka's protocol as bytes: message classes, codecs, headers, the API table.

It knows layouts and versions, never meaning. Handlers see one shape per message; differences between versions end here.
"""

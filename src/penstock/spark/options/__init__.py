"""The common part of the options of source and sink."""

"""Parsing and validation of command line arguments."""

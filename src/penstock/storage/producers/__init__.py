"""Producers and transactions as a log remembers them."""

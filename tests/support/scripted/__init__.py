"""Peers that say what a test tells them to."""

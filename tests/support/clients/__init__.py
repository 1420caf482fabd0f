"""Clients, the records of what they were told, and what they leave on a cluster."""

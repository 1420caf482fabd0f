"""Checkers of a history: promises to clients, and rules that brokers must never break."""

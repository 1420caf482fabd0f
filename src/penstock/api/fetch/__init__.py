"""Fetches: sessions, watches, findings, answers, and requests that wait for news."""

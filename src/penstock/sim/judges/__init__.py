"""Who watches a history, and what is due at its end."""

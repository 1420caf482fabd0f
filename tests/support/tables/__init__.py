"""Tables in an open format: rows for them, and committers that are killed."""

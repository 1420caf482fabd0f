"""The line protocol: one command a line, answers for people and for scripts."""

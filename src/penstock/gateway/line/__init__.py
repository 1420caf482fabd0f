"""The line protocol: one command per line, with answers for people and scripts."""

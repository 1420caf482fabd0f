"""Table formats beside each other: delta-rs and pyiceberg as they come, and the tables of this repository."""

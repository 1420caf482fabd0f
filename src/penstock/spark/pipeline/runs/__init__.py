"""What runs leave behind for `status`, `history` and the metrics: the status file, the last runs, removed flows."""

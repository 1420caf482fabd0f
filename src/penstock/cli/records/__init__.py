"""Records from and to the command line."""

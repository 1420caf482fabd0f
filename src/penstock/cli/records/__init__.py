"""`penstock produce` and `penstock consume`: write and read records on the command line."""

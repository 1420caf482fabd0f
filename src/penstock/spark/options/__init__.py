"""What the options of the source and of the sink have in common."""

"""What processes of Spark share on disk: files that are made once, and compiled code."""

"""The wire client for code that blocks: Spark's driver and workers, and the command line."""

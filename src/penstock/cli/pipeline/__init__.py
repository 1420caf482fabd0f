"""Commands for data pipelines on Spark."""

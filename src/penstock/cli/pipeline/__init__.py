"""Commands about data pipelines on Spark."""

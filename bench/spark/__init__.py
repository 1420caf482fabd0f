"""Topics into and out of Spark: format("penstock") beside Spark's own Kafka connector, in one session on one broker."""

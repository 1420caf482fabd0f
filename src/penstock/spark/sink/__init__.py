"""The sink: rows into topics, from options to acknowledged batches."""

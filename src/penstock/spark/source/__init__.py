"""The source: topics as tables and streams of rows, from options to Arrow batches."""

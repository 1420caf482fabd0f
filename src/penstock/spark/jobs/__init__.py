"""Ready-made pipelines: archive, replay, aggregate and mirror.

Each is a value that says what to do, with `run(...)`; the command line only reads arguments and prints. They build on
the source and the sink by their format name, as any user's program would. Imported without Spark.
"""

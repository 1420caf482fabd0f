"""Ready-made pipelines: archive, replay, aggregate and mirror.

Each job is a value with a `run_...` function; the command line only parses arguments and prints. Jobs use the source
and the sink by their format name, as any program would. Importing this module does not import Spark.
"""

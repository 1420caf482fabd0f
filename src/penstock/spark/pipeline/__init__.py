"""Pipelines: a directory with a specification and definitions, run by Spark Declarative Pipelines.

What Spark leaves to its user is done here: a catalog that outlives a run, one run at a time, errors in one sentence,
rows and lag, restarts. `project` is the directory, `engine` the running Spark, `graph` the definitions in it, `runner`
one run to the end of all topics, `serving` run after run, `checkpoints` what the files on disk say when nothing runs.

Must not know: the command line. Only `engine` and `graph` import Spark, so `status` and `reset` need none.
"""

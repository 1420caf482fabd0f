"""Pipelines: a directory with a specification and definitions, run by Spark Declarative Pipelines.

It adds what Spark leaves to its user: a catalog that outlives a run, one run at a time, errors in one sentence, rows
and lag, restarts. `project` is the directory, `engine` the running Spark, `graph` its definitions, `runner` one run to
the end of all topics, `serving` repeated runs, `runs` what they leave behind, `checkpoints` the state on disk when
nothing runs, `templates` the files of new projects.

Must not know: the command line. Only `engine` and `graph` import Spark, so `status` and `reset` need none.
"""

"""Record batches as columns of Arrow, both ways, by loops that numba compiles; without numba in plain Python.

    decode/   fetched bytes to record batches of Arrow
    encode/   record batches of Arrow to Kafka's
    values/   values as typed columns: JSON
    cache/    compiled code, kept for the next process

It knows no connections, Spark or tables. Importing this package imports nothing: the cache must be set up before numba
is imported.
"""

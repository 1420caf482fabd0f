"""The benchmark behind `make bench-cluster`: three Penstock brokers beside three of Apache Kafka, on one machine.

    scenarios.py   the table of scenarios, with the targets
    clusters.py    three brokers of one kind: start, watch, kill, stop
    pause.py       a steady stock producer while leaders are killed
    committed.py   steady stock transactions, and their consumer, while coordinators are killed
    runner.py      rounds: fresh topic with three replicas, load, meters over all brokers, delete
    __main__.py    the command; docs/benchmarks-cluster.md

The load is the raw driver of `bench`, which also has everything that is not specific to a cluster.
"""

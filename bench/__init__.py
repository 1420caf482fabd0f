"""The benchmark behind `make bench`: Penstock and Apache Kafka side by side, in interleaved rounds.

    brokers.py     start, watch and stop the two brokers
    kafka/         the Maven project that names Apache Kafka's jars
    machine.py     the machine: facts, warm pages, dirty-page limits
    scenarios.py   the table of scenarios, with the targets
    runner.py      rounds: fresh topic, warm pages, load, meters, delete, sync
    load/          the load: requests as bytes, producers, consumers, transactions, groups, one stock client
    partitions.py  4,000 partitions on one broker
    groups.py      a consumer group that forms, loses members and settles
    results.py     the results, as JSON
    report.py      docs/benchmarks.md
    turns.py       `make bench-turns`; cluster/, hostile/ and spark/ have their own targets, too
    micro/         micro-benchmarks of single parts

The driver knows only the protocol, never the broker: both sides get the same bytes.
"""

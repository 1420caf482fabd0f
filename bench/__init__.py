"""The benchmark behind `make bench`: Penstock and Apache Kafka side by side, in interleaved rounds.

    wire.py        the requests of the load, as bytes
    client.py      a blocking connection for unmeasured work: create, delete, wait for leaders
    driver.py      the producing load, closed loop and at a fixed rate, on one epoll loop
    reader.py      the fetching load
    transactions.py  the load of transactional producers, with the requests of transaction_wire.py
    stock.py       the one row with a stock client (confluent-kafka)
    brokers.py     start, watch and stop the two brokers
    kafka/         the Maven project that names Apache Kafka's jars
    machine.py     the machine: facts, warm pages, dirty-page limits
    scenarios.py   the table of scenarios, with the targets
    results.py     the results, as JSON
    runner.py      rounds: fresh topic, warm pages, load, meters, delete, sync
    partitions.py  4,000 partitions on one broker
    selftest.py    the speed of the driver against a sink that does nothing
    report.py      docs/benchmarks.md

The driver knows only the protocol, never the broker: both sides get the same bytes.
"""

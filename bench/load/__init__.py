"""The load of a benchmark, most of it as prebuilt requests; the group members and `stock` are confluent-kafka.

wire.py              the requests of the load, as bytes
client.py            a blocking connection for unmeasured work: create, delete, wait for leaders
driver.py            the producing load, closed loop and at a fixed rate, on one epoll loop
reader.py            the fetching load
transactions.py      the load of transactional producers, with the requests of transaction_wire.py
group_members.py     a process with some members of a consumer group
stock.py             the one row with a stock client
selftest.py          the speed of the driver against a sink that does nothing
"""

"""Penstock's own client of Kafka's protocol, for the parts of Penstock that are clients of a cluster themselves.

    requests/   what is asked and what an answer says, without sockets and clocks
    aio/        the calls on asyncio: the doors and the simulation
    blocking/   the calls that block: Spark and the command line

It knows addresses and the protocol, and nothing of a broker in this process. Users are given `penstock.sdk`.
"""

"""Penstock's own client of Kafka's protocol, for those parts of Penstock that are clients of a cluster.

    requests/   building requests and reading answers, without sockets and clocks
    aio/        asyncio calls, for the gateway and the simulation
    blocking/   blocking calls, for Spark and the command line

It knows addresses and the protocol, but no broker in this process. The client for users is `penstock.sdk`.
"""

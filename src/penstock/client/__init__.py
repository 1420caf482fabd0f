"""The wire client: connections with pipelining, metadata, produce, fetch, groups, on asyncio.

For the parts of Penstock that are clients of the cluster themselves. It knows addresses and
Kafka's protocol, nothing of this process's own broker.
"""

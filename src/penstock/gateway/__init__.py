"""The other doors to the log: a line protocol for netcat, and HTTP + JSON.

Both are clients of the cluster. They run in a process of their own, which the broker starts when
the first caller knocks (`node.doors`), so that a busy door costs the Kafka port nothing but a
client's requests.
"""

"""The gateway: a REST proxy (HTTP + JSON) and a line protocol for netcat.

Both are clients of the cluster. They run in a separate process, which the broker starts at the first connection
(`node.gateway`). So a busy gateway costs the broker only a client's requests.
"""

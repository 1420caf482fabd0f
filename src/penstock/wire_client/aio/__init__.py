"""The wire client on asyncio: connections with pipelining, metadata, produce, fetch, groups."""

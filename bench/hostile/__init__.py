"""Hostile and broken peers beside a healthy producer: `make hostile`, or `python -m bench.hostile --help`.

For each scenario a broker of its own, in a process and a directory of its own, on loopback. A healthy producer writes
one record every few milliseconds, alone and beside the peer, in turns. The table has its latencies, the broker's
memory, the lines the broker logged meanwhile, and whether the broker kept its promises. Everything ends by itself.
"""

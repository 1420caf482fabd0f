"""Hostile and broken peers beside a healthy producer: `make hostile`, or `python -m bench.hostile --help`.

For each scenario a broker of its own, in a process and a directory of its own, on loopback. A healthy producer writes
one record every few milliseconds, alone, beside the peer, and beside a busy loop that takes as much of a processor as
the peer and sends nothing, in turns: what is as slow there is the machine's doing, not the broker's. The table has its
latencies, the broker's memory, the lines the broker logged meanwhile, and whether the broker kept its promises.
Everything ends by itself.
"""

"""Hostile and broken peers beside a healthy producer: `make hostile`, or `python -m bench.hostile --help`.

Each scenario has its own broker, in a separate process and directory, on loopback. A healthy producer writes one record
every few milliseconds: alone, beside the peer, and beside a busy loop that uses as much CPU as the peer and sends
nothing, in turns. If it is equally slow beside the busy loop, the machine is the cause, not the broker. The table has
its latencies, the broker's memory and log lines, and whether the broker kept its promises. Everything ends by itself.
"""

"""One module for each API: its versions, its answers, and its differences from Kafka."""

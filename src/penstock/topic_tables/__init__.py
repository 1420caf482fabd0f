"""A topic as a table: its records, by the wire client and the Arrow decoder, into a table that anyone reads.

    follower.py       the loop: read, commit, wait, maintain
    reading.py        the records of a topic's partitions beyond their positions
    shapes.py         what rows of a table look like; raw.py, json_rows.py: the two there are
    keyed.py          rows of a table that has the newest of each key; newest.py: which ones that are
    writing.py        rows become a version: added, or merged by key
    inference.py      a schema from values; growth.py: one that grows with them
    opening.py        the table of a topic: made, or found and checked
    dead_letters.py   records that do not fit, in a table of their own; dead_letter_topic.py: or in a topic
    progress.py       how far it is
    live.py           a table's rows with the records that it does not have yet

It needs neither Spark nor a JVM. Without numba decoding is slow, but the same.
"""

from __future__ import annotations

from penstock.topic_tables.live import LiveTable, read_live, read_with_tail

__all__ = ["LiveTable", "read_live", "read_with_tail"]

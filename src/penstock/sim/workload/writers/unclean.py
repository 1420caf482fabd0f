"""A topic with unclean leader election: it prefers losing records to having no leader.

Each record is sent once, with acks=all and without a producer id, so that lost records do not block a lane.
Must not know: faults, checkers.
"""

from __future__ import annotations

from penstock.sim.judges.history import Place
from penstock.sim.workload.writers.producers import ACKS_ALL, PlainWriter

UNCLEAN = Place("unclean", 0)
SETTINGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


class UncleanWriter(PlainWriter):
    acks = ACKS_ALL

"""A topic whose leader may be elected uncleanly: rather records lost than nobody to lead.

Each record is sent once, with acks=all and without a producer id: what was lost must not keep a lane from going on.
Must not know: faults, checkers.
"""

from __future__ import annotations

from penstock.sim.judges.history import Place
from penstock.sim.workload.producers import ACKS_ALL, PlainWriter

UNCLEAN = Place("unclean", 0)
SETTINGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


class UncleanWriter(PlainWriter):
    acks = ACKS_ALL

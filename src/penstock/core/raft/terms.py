"""Which terms can be true. A term is the leader epoch of its batches, an int32, and never goes back: one that was taken
up by mistake, from a damaged file or a hostile peer, would be there for good, and the last one ends the quorum.

    0 ....................... HEALED_TERM .......... HEALED_TERM + MAX_JUMP ........ LAST_TERM ..... 2^31 - 1
    real elections get here   what is too high on    others may jump here            nobody goes
                              a disk becomes this                                    beyond it

An election takes a tenth of a second at least, so `MAX_JUMP` of them while a server was away takes weeks, and 2^30
three years. A message of a term that is further ahead is not heard, as if it had been lost: that is safe in Raft.
"""

from __future__ import annotations

from typing import Final

MAX_JUMP: Final = 1 << 24
HEALED_TERM: Final = 1 << 30
LAST_TERM: Final = (1 << 31) - 1 - MAX_JUMP


def is_plausible(term: int, own_term: int) -> bool:
    """Whether a server of `own_term` may hear of that one."""
    if term <= own_term:
        return True
    return term <= LAST_TERM and (term - own_term <= MAX_JUMP or HEALED_TERM <= term <= HEALED_TERM + MAX_JUMP)


def needs_healing(term: int) -> bool:
    return term > LAST_TERM


def can_be_healed(last_log_term: int) -> bool:
    """A term beyond the last one that left no entry in the log was never led here, so nothing was promised between
    `HEALED_TERM` and it: the vote may be forgotten, and the term go back to one that is beyond all real ones."""
    return last_log_term < HEALED_TERM

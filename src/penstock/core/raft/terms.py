"""Plausible terms. A term is the leader epoch of its batches, an int32, and never decreases: a wrong term from a
damaged file or a hostile peer would stay forever, and the last term would end the quorum.

    0 ....................... HEALED_TERM .......... HEALED_TERM + MAX_JUMP ........ LAST_TERM ..... 2^31 - 1
    real elections get here   a higher term on disk  peers may jump up to here       no term is
                              is reset to this                                       beyond it

An election takes at least a tenth of a second. So `MAX_JUMP` elections while a server is away take weeks, and 2^30
take three years. A message with a term further ahead is ignored like a lost message, which is safe in Raft.
"""

from __future__ import annotations

from typing import Final

MAX_JUMP: Final = 1 << 24
HEALED_TERM: Final = 1 << 30
LAST_TERM: Final = (1 << 31) - 1 - MAX_JUMP


def is_plausible(term: int, own_term: int) -> bool:
    """Whether a server with `own_term` may accept the term."""
    if term <= own_term:
        return True
    return term <= LAST_TERM and (term - own_term <= MAX_JUMP or HEALED_TERM <= term <= HEALED_TERM + MAX_JUMP)


def needs_healing(term: int) -> bool:
    return term > LAST_TERM


def can_be_healed(last_log_term: int) -> bool:
    """A term beyond `LAST_TERM` without an entry in the log never had a leader here, so no promise was made in terms
    above `HEALED_TERM`: the vote may be forgotten and the term reset to a value above all real terms."""
    return last_log_term < HEALED_TERM

"""Parts of a broker or cluster without the rest of it."""

"""How commands reach a cluster, and what they say if they do not."""

"""Defects that can be planted, to see that a judge finds them."""

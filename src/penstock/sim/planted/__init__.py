"""Defects that can be planted, to check that a judge finds them."""

"""Clients of a simulated cluster: lean, impatient, and writing down everything they do and see."""

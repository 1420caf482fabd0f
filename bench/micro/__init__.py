"""Micro-benchmarks of single parts, each a program."""

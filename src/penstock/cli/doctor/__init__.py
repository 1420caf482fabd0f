"""Explains how this machine reaches the cluster."""

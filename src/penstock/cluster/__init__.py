"""Cluster metadata: its log, the controller that makes the decisions, and the image that all other code reads.

A metadata record is committed by the Raft quorum of the voters (`cluster.quorum`).
"""

"""Cluster metadata: its log, the controller that decides, and the image others read.

One node today: the controller is this broker and a record is committed when it is stable
here. Consensus comes in behind `MetadataLog.append` without moving its callers.
"""

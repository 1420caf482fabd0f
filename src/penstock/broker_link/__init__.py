"""Connections from one node of a cluster to another.

Each begins with an introduction, in which both nodes prove that they know the cluster's secret
(`broker_link.introduction`). Then follow requests of Kafka's protocol or with Penstock's private API keys. Must not
know: which broker leads a partition, what a request means.
"""

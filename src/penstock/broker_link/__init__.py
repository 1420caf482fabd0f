"""Connections from one node of a cluster to another.

Each begins with an introduction, in which both nodes show the cluster's secret (`broker_link.introduction`). What is
said afterwards is Kafka's protocol or a private key of Penstock. Must not know: who leads what, what a request means.
"""

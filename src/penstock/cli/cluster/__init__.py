"""Commands about the cluster: health, members, replicas that move."""

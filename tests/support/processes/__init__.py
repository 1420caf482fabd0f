"""Real processes of Penstock, and commands in this process."""

"""What goes wrong in a history, and who sees to it."""

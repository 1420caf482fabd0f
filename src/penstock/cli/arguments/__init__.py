"""What people write on a command line, read and checked."""

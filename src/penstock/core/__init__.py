"""Sans-IO state machines. They take facts and return intentions; they do not know each other."""

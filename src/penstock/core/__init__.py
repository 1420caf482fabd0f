"""Sans-IO state machines: facts in, intentions out. The packages do not know each other."""

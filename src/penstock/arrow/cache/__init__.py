"""Files that processes share: made once, and with compiled code."""

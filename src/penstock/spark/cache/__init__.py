"""Files that processes of Spark share: made once, and with compiled code."""

"""A session before its JVM starts: settings, Java, the Python of the workers, a place for their output."""

"""What a session needs before its JVM starts: settings, Java, the Python of the workers, a place for their output."""

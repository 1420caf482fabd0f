"""Words that every layer shares: ids and the error tree. Knows nothing above it."""

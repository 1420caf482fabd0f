"""Types that every layer shares: ids and the error tree. Must not know: any other layer."""

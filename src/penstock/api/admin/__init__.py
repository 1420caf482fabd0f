"""Parts that several handlers of administration share."""

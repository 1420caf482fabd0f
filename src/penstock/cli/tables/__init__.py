"""`penstock table`: topics as tables in an open format, and what there is to do with such tables."""

"""Transactions as a sans-IO core: requests in, records of `__transaction_state` out."""

"""Transactional producers, and the applications that use them."""

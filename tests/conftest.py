"""Being here puts `tests/` on the import path: what several directories share lies beside this file."""

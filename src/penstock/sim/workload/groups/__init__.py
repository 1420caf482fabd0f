"""Members of groups, of both protocols, and groups without members."""

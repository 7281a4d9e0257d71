"""Binds ports, limits connections, and reads addresses. Knows nothing of protocols."""

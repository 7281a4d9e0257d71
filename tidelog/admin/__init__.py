"""Administers a cluster from Python: topics, groups and access. Entries: `Topics`, `Groups`, `Access`."""

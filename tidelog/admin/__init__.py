"""Administers a cluster from Python: topics, groups and access.

Entries: `Topics` (topics.py), `Groups` (groups.py), `Access` (access.py), reached as `log.topics`, `log.groups`, `log.access`.

Invariant: every change takes `validate_only`. Answers are frozen structs that are ready for JSON.

Must not import the producer, the consumer or the group.
"""

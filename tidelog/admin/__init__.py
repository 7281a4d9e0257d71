"""Administers a cluster from Python: topics, groups and access.

    log.topics, log.groups, log.access ─▶ topics.py, groups.py, access.py ─▶ transport/ ─▶ a broker
                                                        └─▶ group_descriptions.py: answers as frozen structs

Entries: `Topics` (topics.py), `Groups` (groups.py), `Access` (access.py).

Invariants:
- Every change takes `validate_only`.
- Answers are frozen structs that are ready for JSON.
- A change whose answer was lost raises OutcomeUnknown, and is not repeated.

Must not import the producer, the consumer or the group.
"""

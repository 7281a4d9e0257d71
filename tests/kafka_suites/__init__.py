"""Acceptance suites for the Kafka listener: programs that other projects wrote, run against one bootstrap address.

    __main__ ─▶ suites (registry) ─▶ one module per suite ─▶ Result ─▶ report ─▶ exit code
       │                                  │
       │                                  └─▶ lists/SUITE.txt: which tests run, which are omitted, and why
       └─▶ a target: `--bootstrap`, `reference_broker` (Apache Kafka) or `tidelog_cluster`

Every suite comes from a package registry, pinned by version and hash, and lies in the user's cache (`cache.py`). Nothing that is
downloaded is committed. A suite knows its target by the bootstrap address alone; so each is verified against Apache Kafka first.
"""

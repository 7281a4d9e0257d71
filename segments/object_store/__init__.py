"""Stores objects behind one interface: S3, a local directory, or memory.

    open.py ─▶ s3/ | directory.py | memory.py      behind interface.py
    decorators: instrumented.py (counts), health_tracking.py (outages), timeout.py (bounds)

Entry: `open_store` in open.py. conditional_put_check.py proves at the start that the store honours create-only PUTs.

Invariants:
- Of two create-only PUTs of a key, one wins; a PUT whose answer was lost is OutcomeUnknown.
- All stores pass one contract suite.
- store_clock.py compares this machine's clock with the store's before anything expires.

Must not import anything of segments but its settings and limits.
"""

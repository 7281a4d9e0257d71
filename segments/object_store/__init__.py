"""Stores objects behind one interface: S3, a local directory, or memory.

    open.py ─▶ s3.py | directory.py | memory.py      behind interface.py
    over decorator.py: instrumented.py (counts), health_tracking.py (outages), timeout.py (deadlines)

Entry: `ObjectStore` in interface.py. The rest of the project imports no S3 client. Must not import anything else of segments but
its settings.
"""

"""Stores objects in a bucket of S3, or of a store that speaks its protocol and honours `If-None-Match: *` on PUT.

    S3ObjectStore (store.py) ─┬─ PUT, GET ───▶ requests.py, signature.py ─┬─▶ the bucket
                              └─ everything else ───▶ aiobotocore ────────┘
    settings.py · errors.py (which error each answer means)

Entry: `S3ObjectStore.open` in store.py. A process that stores in a directory imports settings.py alone, which is light.

Invariants:
- A create is sent once. An outcome that is unknown is reported, not hidden by a retry.
- An error never quotes a header, a signature or a key id.

Must not import anything of segments but its interface and validation.
"""

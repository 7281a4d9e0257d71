"""Audits a bucket without a broker: sessions, segments, manifests, Parquet, and what each topic takes.

    bucket_audit.py ─▶ history_audit.py, trimmed_segments.py ─▶ findings.py

Entry: `audit_bucket` in bucket_audit.py; `tidelog bucket` and the console call it.

Invariant: an audit writes nothing.

Must not import what compacts or deletes: it shares with it the rules that say what may be deleted.
"""

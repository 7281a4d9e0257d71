"""Makes this process a member of the cluster: its lease, its sessions, takeovers, handovers and drains.

    broker_lease.py ─▶ session_opener.py ─▶ session_manager.py ─▶ takeover.py | handover.py
    identity.py checks that metadata and bucket belong together; bucket_isolation.py ends a session that cannot write

Entries: `SessionManager` in session_manager.py; `ClusterView` in view.py, the cluster as this broker knows it from watches.

Invariants:
- A session serves only after its number is claimed on the bucket and foreign sessions are sealed.
- A partition is served only after all earlier sessions that may hold its records are sealed and read.
- A broker ends when its metadata are no longer those of the bucket.

Must not import gateway/routing, a listener or the controller's loop.
"""

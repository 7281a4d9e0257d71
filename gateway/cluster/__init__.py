"""Makes this process a member of the cluster: its lease, its sessions, takeovers, handovers and drains.

    broker_lease.py ─▶ session_opener.py ─▶ session_manager.py ─▶ takeover.py | handover.py
    bucket_isolation.py gives leadership up where the bucket can't be reached

Entry: `SessionManager` in session_manager.py. Must not import routing/ or anything above it.
"""

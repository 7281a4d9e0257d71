"""The log of one session: appends to and reads from the partitions that this broker leads.

Entry: SessionLog in session_log.py. It joins the parts, and callers use them directly:

    append ─▶ writer (wal/)      partitions (partition/)      reads (read/)      manifests, leadership (here)

Invariants: an acknowledgement is given after the commit; a reader sees only what is committed, and receives a high watermark only
while no other broker can lead. The owner of a session brings what the log does not know: its lease (LeadershipGuard) and the topics
(KeyedRouting). The package imports nothing of the gateway.
"""

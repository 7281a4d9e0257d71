"""Writes and reads segments: the objects that acknowledged records lie in until they are compacted.

    segment_writer.py ─▶ pending_segment.py ─▶ flush_policy.py ─▶ segment_file.py ─▶ commit_order.py
    session.py claims a session and seals it; footer_reader.py, session_reader.py and run_index.py find records again
    scanner.py follows all sessions, for readers without a broker; known_sessions.py and session_listing.py decide for it

Invariant: records of a session commit in the order of its segments. Must not import history/ or anything above it.
"""

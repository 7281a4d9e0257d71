"""Writes and reads segments: the objects that hold acknowledged records until they are compacted.

    segment_writer.py ─▶ pending_segment.py ─▶ flush_policy.py ─▶ segment_file.py ─▶ commit_order.py
    session.py: claim and seal      session_reader.py, footer_reader.py, footer_index.py: read footers

Entry: `SegmentWriter` in segment_writer.py.

Invariants:
- Segments of a session commit in the order of their numbers, whatever order their PUTs finish in.
- A seal at a segment's number ends the session: nothing at or behind it was ever acknowledged.

Must not import segments/history, segments/partition or anything above them.
"""

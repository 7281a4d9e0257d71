"""Reads and writes records and tables on the command line.

    stdin  ─▶ record_input.py (pure: lines, NDJSON, CSV, envelopes, whole files) ─▶ produce
    stdout ◀─ record_writer.py ◀─ record_format.py (pure: table lines, JSON, kcat's formats) ◀─ consume
    stdout ◀─ group_tables.py (pure: members, lags, offsets, moves)

Entries: `RecordInput` (record_input.py), `RecordWriter` (record_writer.py).

Invariants:
- Keys and values are written as the bytes that they are.
- `RecordWriter.records` counts records whose last byte standard output took, so a commit never covers others.
- A slow reader of the pipe stops records, not the event loop.

Must not import a command.
"""

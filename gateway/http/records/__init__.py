"""Produces and fetches records over HTTP: JSON, newline-delimited JSON and Arrow, single answers and streams.

    produce.py ─▶ json_body.py | arrow_body.py ─▶ gateway/records ─▶ produce_results.py
    fetch.py | stream.py ─▶ gateway/routing ─▶ encoding.py

Entries: `HttpProduce` (produce.py), `HttpFetch` (fetch.py), `RecordStream` (stream.py). event_ids.py names positions of a stream.

Invariants:
- A body is checked whole before its first record is appended.
- A stream resumes after the last event that its client received.
- Answers reserve memory before they are read or encoded.

Must not import FastAPI or gateway/grpc.
"""

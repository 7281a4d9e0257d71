"""Runs `tidelog demo`: a broker is killed while producers write flights, and every row is compared afterwards.

    flights.py ─▶ producers.py (half over HTTP, half over gRPC) ─▶ `tidelog dev` ◀─ killer.py (kill -9 before the acknowledgement)
                                                                      └─▶ started again ─▶ read back: SDK, kafka_client.py, spark.py
    run.py compares what was sent with what was read ─▶ report.py

Entry: `run_demo` in run.py. bucket.py counts what is committed on the bucket without a broker.

Invariants:
- A row that was acknowledged and is not read back fails the demo, with its partition and offset.
- The broker and the killer end with the demo, by process id.

It uses the SDK and the command line as a user would. Must not import the gateway or compaction.
"""

"""Reads records as a member of a consumer group: membership, positions, commits.

    consumer.py ─▶ reader.py ─▶ positions.py, commits.py, start_offsets.py
                            └─▶ coordinator_client.py (gRPC)      member states and rebalances: metadata's group member package

Entry: `GroupConsumer` in consumer.py.

Invariants:
- A record is committed only after the caller has asked for the next one.
- A partition is given up after its last record was processed and committed.

Must not import the client or the command line.
"""

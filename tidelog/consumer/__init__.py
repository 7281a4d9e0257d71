"""Reads records of topics without a group: fetches ahead from leaders or closer replicas, and returns records in order.

    consumer.py ─▶ topic_reader.py ─▶ subscription.py ─▶ fetcher.py ─▶ prefetch_buffer.py

Entries: `Consumer` and `TopicsConsumer` in consumer.py.

Invariants:
- Records of a partition are returned in the order of their offsets, each once.
- Bytes that were fetched ahead stay within the client's bound.

Must not import the producer or the group.
"""
